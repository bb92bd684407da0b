"""Limiters and permits cannot be copied: each copy would grant the whole limit again."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.stores import MemoryStore
from tests.virtually import virtual

Copy = Callable[[Any], object]

COPIES: dict[str, Copy] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": partial(pickle.dumps, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}

every_copy = pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)


@every_copy
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: RateLimiter("10/s", concurrency_limit=2), "RateLimiter"),
        (lambda: RateLimiter("10/s", store=MemoryStore(), key="a"), "RateLimiter"),
        (lambda: RateLimiter("10/s", parent=RateLimiter("20/s")), "RateLimiter"),
        (lambda: KeyedRateLimiter("10/s"), "KeyedRateLimiter"),
        (lambda: KeyedRateLimiter("10/s")["a"], "RateLimiter"),
        (lambda: RateLimiter("10/s").throttle(), "Permit"),
        (lambda: RateLimiter("10/s").throttle(2, timeout=5), "Permit"),
    ],
)
@pytest.mark.filterwarnings("ignore:<Permit of .* never entered:RuntimeWarning")
def test_copy_is_rejected_and_points_to_stores(
    make: Callable[[], object], kind: str, make_copy: Copy
) -> None:
    with pytest.raises(TypeError, match=rf"^a {kind} cannot be .* same store= and key= .*stores"):
        make_copy(make())


@every_copy
@virtual
async def test_held_permit_is_not_copied(make_copy: Copy) -> None:
    limiter = RateLimiter(concurrency_limit=1)
    permit = await limiter.acquire()
    with pytest.raises(TypeError, match=r"^a Permit cannot be"):
        make_copy(permit)
    assert limiter.statistics().in_flight == 1
    permit.release()
    assert limiter.statistics().in_flight == 0


def test_process_pool_does_not_receive_a_limiter() -> None:
    """Four workers of a pool each had the full rate."""
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(TypeError, match="store= and key="),
    ):
        pool.submit(repr, RateLimiter("10/s")).result(timeout=60)
