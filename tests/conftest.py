"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

# A slow machine must not fail a property, and every run must try the same examples:
# a test that fails for a colleague has to fail here too.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
