"""This machine: /proc, systemd, private files, the memory allocator."""
