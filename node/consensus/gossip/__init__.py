"""Objects on their way between members: pushed, passed on, repaired, served, and caught up with."""
