"""Reads records from a fuzzer: `python -m tests.fuzz.stores tests/fuzz/corpus/stores`.

Needs atheris and takes libFuzzer's options, as `tests.fuzz.headers` does.
"""

import importlib
import math
import sys
from typing import Any

atheris: Any = importlib.import_module("atheris")
with atheris.instrument_imports(include=["aiothrottle.algorithms", "aiothrottle.stores"]):
    from aiothrottle.stores.record import DamagedRecordError, Record, seal
    from tests.support.stored import STORED

NOW = 1000.5


def read(data: bytes) -> None:
    """Check that a record keeps its limit and can be written, or raises a clear error."""
    algorithm = STORED[data[0] % len(STORED) if data else 0]
    try:
        record = Record.load(algorithm, "key", seal(algorithm) + data[1:])
    except DamagedRecordError:
        return
    answer = record.reserve(algorithm, NOW, [1, 0.5, 1, 1, 1], 0.0)
    assert sum(instant <= answer.now for instant in answer.instants) <= 4
    for number in (*answer.instants, answer.remaining, answer.reset_after, answer.retry_after):
        assert not math.isnan(number)
    record.refund(algorithm, NOW + 1, 1, NOW)
    record.record(algorithm, NOW - 1, 2)
    assert not math.isnan(record.peek(algorithm, NOW + 2, 1).retry_after)
    Record.load(algorithm, "key", record.dump(algorithm))


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
