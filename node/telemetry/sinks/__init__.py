"""Where what a round was like goes besides the store: files and services that people look at."""
