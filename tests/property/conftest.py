"""Settings of Hypothesis for all properties."""

from hypothesis import HealthCheck, settings

# On a machine that is busy with other tests an example may take any time.
settings.register_profile("busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
