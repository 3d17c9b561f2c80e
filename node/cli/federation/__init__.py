"""Commands of the federation: its genesis and members, changes of it, and its runs and rounds."""
