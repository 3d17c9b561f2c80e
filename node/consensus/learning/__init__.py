"""A site's learning in the rounds: what its worker trains for, what it sends, masks, and recomputes afterwards."""
