"""Reads rates from a fuzzer: `python -m tests.fuzz.rates tests/fuzz/corpus/rates`.

Needs atheris and takes libFuzzer's options, as `tests.fuzz.headers` does.
"""

import importlib
import math
import sys
from typing import Any

atheris: Any = importlib.import_module("atheris")
with atheris.instrument_imports(include=["aiothrottle.rate"]):
    from aiothrottle.rate import Rate


def read(data: bytes) -> None:
    """Check that a rate is read back as it was written, or raises an error that names it."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        rate = Rate.parse(text)
    except ValueError as error:
        assert "rate" in str(error)  # noqa: PT017 - either of two
        return
    assert 0 < rate.limit < math.inf
    assert 0 < rate.period < math.inf
    again = Rate.parse(str(rate))
    assert math.isclose(again.limit, rate.limit, rel_tol=1e-11)
    assert math.isclose(again.period, rate.period, rel_tol=1e-11)


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
