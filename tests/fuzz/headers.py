"""Reads headers from a fuzzer that is guided by coverage: `python -m tests.fuzz.headers`.

Needs atheris, which is not among the dependencies: `uv run --with atheris`.
Options are those of libFuzzer: `-max_total_time=60`, or a directory to keep the findings in.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

atheris: Any = importlib.import_module("atheris")
with atheris.instrument_imports(include=["aiothrottle.headers", "http_sf"]):
    from aiothrottle.headers import PROFILES, Profile, parse_rate_limit
    from tests.support.soundness import check

CORPUS = Path(__file__).parents[1] / "corpus"
CASES: list[dict[str, Any]] = [
    case
    for file in sorted(CORPUS.glob("*.json"))
    for case in json.loads(file.read_text(encoding="utf-8"))
]
BODIES = sorted({case["body"] for case in CASES if "body" in case})
NAMES = sorted({name.lower() for case in CASES for name, _ in case["headers"]})
VALUES = sorted({value for case in CASES for _, value in case["headers"]})
STATUSES = [200, 400, 403, 413, 418, 429, 503]
PROFILED: list[Profile | None] = [None, *PROFILES.values()]
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)

Choice = TypeVar("Choice")


def read(data: bytes) -> None:
    """Build a response from the bytes, and check the limits that are read from it."""
    made = atheris.FuzzedDataProvider(data)

    def one_of(choices: Sequence[Choice]) -> Choice:
        return choices[int(made.ConsumeIntInRange(0, len(choices) - 1))]

    headers: list[tuple[str, str]] = []
    for _ in range(made.ConsumeIntInRange(0, 6)):
        value = str(made.ConsumeUnicode(made.ConsumeIntInRange(0, 80)))
        headers.append((one_of(NAMES), one_of(VALUES) + value if made.ConsumeBool() else value))
    status, profile = one_of(STATUSES), one_of(PROFILED)
    body: str | bytes | None = None
    if made.ConsumeBool():
        known, piece = one_of(["", *BODIES]), str(made.ConsumeUnicode(40))
        cut = int(made.ConsumeIntInRange(0, len(known)))
        body = known[:cut] + piece + known[cut:] if known else made.ConsumeBytes(200)
    check(parse_rate_limit(status, headers, NOW, body, profile))


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
