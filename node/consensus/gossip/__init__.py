"""The way of objects between members: push, pass on, repair, serve, and catch up."""
