"""Training in a process of its own: the daemon's handle, the child, their frames, and checkpoints."""
