"""Leaks, measured: what one member learns of another's samples from what that one has sent."""
