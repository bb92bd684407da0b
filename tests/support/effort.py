"""How far the searches go: a few examples by default, as many as wanted in `.ci/deep`.

AIOTHROTTLE_TEST_EFFORT multiplies the number of examples, AIOTHROTTLE_TEST_SEED chooses others.
Without a seed each run tries the same: a test that fails for one person fails for all.
"""

import os

from hypothesis import HealthCheck, settings

EFFORT = float(os.environ.get("AIOTHROTTLE_TEST_EFFORT", "1"))
SEED = int(os.environ.get("AIOTHROTTLE_TEST_SEED", "0"))


def examples(count: int, *, steps: int = 50) -> settings:
    return settings(
        max_examples=max(1, round(count * EFFORT)),
        stateful_step_count=steps,
        derandomize=not SEED,
        database=None,
        deadline=None,  # a slow machine must not fail a property
        suppress_health_check=[HealthCheck.too_slow],
    )


def seeds(count: int) -> range:
    """Return the seeds of a search that tries `count` of them by default."""
    first = SEED * 1_000_000
    return range(first, first + max(1, round(count * EFFORT)))
