"""Settings of Hypothesis for all properties: a commit tries few examples, and ``make test-all`` many."""

from hypothesis import HealthCheck, settings

# On a machine that is busy with other tests an example may take any time.
settings.register_profile(
    "busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25
)
settings.register_profile("many", settings.get_profile("busy"), max_examples=1000)
settings.load_profile("busy")
