"""Commands of research: simulations, sweeps of them, attacks on them, and plans of a time budget."""
