"""The table that decides what a new federation begins with: real data, by sites, together, alone and pooled."""
