"""The counts of the benchmarks, where they are more than a sum."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import aiothrottle

FOLDER = Path(aiothrottle.__file__).parent.parent / "benchmarks"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not there: a built package")
def test_store_share_is_counted_during_full_demand() -> None:
    """Grants to requests that still wait when the demand ends are no part of the rate."""
    pytest.importorskip("redis")
    bursts = [float(second) for second in range(15)]  # ten of demand, and five to drain
    instants = [[100.0 + burst for burst in bursts for _ in range(10)] for _ in range(2)]
    code = (
        "import json, sys; import stores; "
        "print(json.dumps(stores.granted_within(json.loads(sys.argv[1]), 9)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(instants)],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ended.stdout) == [90, 90], "20 per second of both, over 9 seconds"
