"""What a node tells the outside: Prometheus metrics, HTTP probes, and sinks for rounds."""
