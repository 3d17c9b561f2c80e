"""For every test: how long anything takes is not what Hypothesis judges, on a machine that others use too."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("fednode", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fednode")
