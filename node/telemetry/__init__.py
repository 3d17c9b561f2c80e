"""Telemetry: Prometheus metrics, HTTP probes, and sinks for rounds."""
