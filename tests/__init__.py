"""The tests.  C{CI} in the environment makes hypothesis try the same examples each time."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("admission", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("admission-ci", settings.get_profile("admission"), derandomize=True)
settings.load_profile("admission-ci" if "CI" in os.environ else "admission")
