"""Commands of the chain: shown, verified, compared, exported and imported."""
