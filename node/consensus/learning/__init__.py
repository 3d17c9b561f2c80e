"""A site's learning in the rounds: what its worker trains, what the site sends and masks, and what it recomputes
later."""
