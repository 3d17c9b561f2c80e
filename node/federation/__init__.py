"""Changes of a federation as operators see them: typed, checked before they are signed, and shown as a difference."""
