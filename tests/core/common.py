"""What several tests of the core use."""

import gc


def ours() -> int:
    """Return how many objects of this package's classes are alive; those of imports aside."""
    found = (str(type(one).__module__).partition(".")[0] for one in gc.get_objects())
    return sum(package == "aiothrottle" for package in found)
