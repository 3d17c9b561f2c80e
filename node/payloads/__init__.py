"""The payloads that contributions commit to: fetched, checked, aggregated, kept and let go."""
