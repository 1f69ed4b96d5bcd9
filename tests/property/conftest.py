"""Settings of Hypothesis for all properties: a commit tries few examples, and ``make test-all`` many."""

import os

from hypothesis import HealthCheck, settings

# On a machine that is busy with other tests an example may take any time. A run that judges a change tries the same
# examples each time: a new one is for a person who can look into what it finds.
settings.register_profile(
    "busy",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=25,
    derandomize="true" in {os.environ.get("CI"), os.environ.get("AGAIN")},  # the Makefile's AGAIN
)
settings.register_profile("many", settings.get_profile("busy"), max_examples=1000, derandomize=False)
settings.load_profile("busy")
