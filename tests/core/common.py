"""What several tests of the core use."""

import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import aiothrottle

__all__ = ["fails", "ours"]


def ours() -> int:
    """Return how many objects of this package's classes are alive; those of imports aside."""
    found = (str(type(one).__module__).partition(".")[0] for one in gc.get_objects())
    return sum(package == "aiothrottle" for package in found)


def fails(program: str) -> str:
    """Run a program in another process, with all warnings as errors; return what is wrong."""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)],
        cwd=Path(aiothrottle.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return ended.stderr or ("" if ended.returncode == 0 else f"it ended with {ended.returncode}")
