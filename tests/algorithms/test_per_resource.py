"""Specifies `PerResource`: each algorithm decides as it does alone, by its part of the cost."""

import copy
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.algorithms import (
    AllOf,
    FixedWindow,
    PerResource,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.amounts import Amounts, amounts, by_name

PARTS: list[tuple[str, Any]] = [
    ("requests", SlidingWindowLog("3/s")),
    ("tokens", TokenBucket("10/s")),
    ("tokens", FixedWindow("15/2s")),
]
BOTH = PerResource(*PARTS)


def of(requests: float, tokens: float) -> float:
    return amounts({"requests": requests, "tokens": tokens})


COSTS = st.builds(
    of,
    st.sampled_from([0.0, 1.0, 2.0]),
    st.sampled_from([0.0, 1.0, 4.0, 9.0]),
)
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), COSTS, st.booleans()), max_size=12)


@given(STEPS)
def test_parts_decide_as_they_do_alone(steps: list[tuple[float, float, bool]]) -> None:
    state = BOTH.start()
    alone = [(name, algorithm, algorithm.start()) for name, algorithm in PARTS]
    now, taken = 0.0, list[tuple[float, float]]()
    for pause, cost, returns in steps:
        now += pause
        tokens = by_name(cost)
        waits = [each.delay(part, now, tokens.get(name, 0.0)) for name, each, part in alone]
        wait = BOTH.delay(state, now, cost)
        assert wait >= max(waits)
        assert BOTH.delay(state, now + wait, cost) == 0.0
        if not any(waits):
            assert wait == 0.0
            taken.append((now, cost))
            BOTH.take(state, now, cost)
            for name, each, part in alone:
                each.take(part, now, tokens.get(name, 0.0))
        elif returns and taken:
            at, back = taken.pop()
            BOTH.refund(state, now, back, at)
            for name, each, part in alone:
                each.refund(part, now, by_name(back).get(name, 0.0), at)
        free = [each.remaining(part, now) for _, each, part in alone]
        remaining = Amounts({"requests": free[0], "tokens": min(free[1:])})
        assert BOTH.remaining(state, now) == remaining
        resets = [each.reset_after(part, now) for _, each, part in alone]
        assert BOTH.reset_after(state, now) == max(resets)
    loaded = BOTH.load(BOTH.dump(state))
    assert BOTH.remaining(loaded, now) == BOTH.remaining(state, now)


def test_copy_is_equal() -> None:
    for copied in (copy.deepcopy(BOTH), pickle.loads(pickle.dumps(BOTH))):
        assert copied == BOTH
        assert by_name(copied.capacity) == {"requests": 3.0, "tokens": 10.0}


def test_rates_that_change_in_number_inherit_the_rest() -> None:
    state = BOTH.start()
    BOTH.take(state, 0.0, amounts({"requests": 2, "tokens": 8}))
    fewer = PerResource(("tokens", SlidingWindowLog("9/s")), ("requests", SlidingWindowLog("4/s")))
    inherited = fewer.inherit(BOTH, state, 0.5)
    remaining = by_name(fewer.remaining(inherited, 0.5))
    assert remaining["requests"] == 2
    assert remaining["tokens"] <= 6
    more = PerResource(*PARTS, ("bytes", SlidingWindowLog("7/s")))
    wider = more.inherit(BOTH, state, 0.5)
    assert by_name(more.remaining(wider, 0.5)) == {
        **by_name(BOTH.remaining(state, 0.5)),
        "bytes": 7,
    }
    fresh = AllOf(SlidingWindowLog("1/s"))
    assert BOTH.remaining(BOTH.inherit(fresh, fresh.start(), 0.0), 0.0) == BOTH.capacity


def test_rejected_cost_counts_where_rejections_do() -> None:
    algorithm = PerResource(
        ("requests", WaitUntil(1, 0, 4)),
        ("requests", TokenBucket("10/s")),
        ("tokens", TokenBucket("10/s", burst=10)),
    )
    state = algorithm.start()
    cost = amounts({"requests": 1, "tokens": 5})
    algorithm.take(state, 0.0, cost)
    assert algorithm.max_wait < algorithm.delay(state, 0.0, cost) == 1.0
    assert algorithm.cost_of_reject(state, 0.0, cost, 0.0) == 1.0
