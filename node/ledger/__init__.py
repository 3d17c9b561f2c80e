"""A store as answers: read, verified, compared, explained, exported and imported."""
