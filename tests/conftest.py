"""For every test: how long anything takes is not what Hypothesis judges, on a machine that others use too; and what is
started heeds Ctrl-C, also where a shell runs the tests in the background, which has them ignore it."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("fednode", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fednode")
signal.signal(signal.SIGINT, signal.default_int_handler)
