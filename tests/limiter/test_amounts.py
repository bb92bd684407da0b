"""Specifies the arithmetic of costs in several resources, alone and mixed with plain numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.amounts import (
    Amounts,
    amounts,
    as_costs,
    by_name,
    common,
    covers,
    excess,
    least,
    nothing,
    positive,
    total,
)

NAMES: tuple[str, ...] = ("requests", "tokens", "bytes")
NUMBERS = st.integers(-8, 8).map(float)
NAMED: st.SearchStrategy[dict[str, float]] = st.dictionaries(st.sampled_from([*NAMES]), NUMBERS)
COSTS = NUMBERS | NAMED.map(amounts)

HEAVY = Amounts({"requests": 1.0, "tokens": 5.0})


def each(cost: float) -> list[float]:
    return list(as_costs(cost, NAMES).values())


@given(COSTS, COSTS, NUMBERS)
def test_arithmetic_is_that_of_each_resource(one: float, other: float, factor: float) -> None:
    pairs = list(zip(each(one), each(other), strict=True))
    assert each(one + other) == [a + b for a, b in pairs]
    assert each(one - other) == [a - b for a, b in pairs]
    assert each(one * factor) == [a * factor for a in each(one)]
    assert each(total([one, other, one])) == [a + b + a for a, b in pairs]
    assert each(positive(one)) == [max(0.0, a) for a in each(one)]
    assert bool(one) == any(each(one))
    assert bool(one - one) is False
    named = zip(NAMES, pairs, strict=True)
    of_other = [pair for name, pair in zip(NAMES, pairs, strict=True) if name in by_name(other)]
    assert covers(one, other) == all(a >= b for a, b in of_other)
    lesser = [min(pair) if name in by_name(one) else 0.0 for name, pair in named]
    assert each(common(one, other)) == lesser


def test_cost_without_other_resources_is_a_number() -> None:
    assert type(amounts({"requests": 2.0, "tokens": 0.0})) is float
    assert amounts({}) == 0.0


def test_amounts_differ_from_their_number() -> None:
    assert float(HEAVY) == 1.0
    assert HEAVY != 1.0
    assert Amounts({"tokens": 5.0, "requests": 1.0}) == HEAVY
    assert len({HEAVY, Amounts({"tokens": 5.0, "requests": 1.0}), 1.0}) == 2
    assert repr(HEAVY) == "Amounts({'requests': 1.0, 'tokens': 5.0})"


def test_limit_is_of_the_resources_that_it_names() -> None:
    limit = Amounts({"requests": math.inf, "tokens": 4.0})
    assert excess(HEAVY, limit) == "tokens"
    assert excess(Amounts({"requests": 9.0, "bytes": 9.0}), limit) is None
    assert (excess(HEAVY, 0.5), excess(2.0, 2.0)) == ("requests", None)
    assert least(limit, 3.0) == least(3.0, limit) == Amounts({"requests": 3.0, "tokens": 4.0})
    assert nothing(limit) == Amounts({"requests": 0.0, "tokens": 0.0})
    assert (least(3.0, 2.0), nothing(3.0)) == (2.0, 0.0)


def test_amounts_need_requests() -> None:
    with pytest.raises(KeyError):
        Amounts({"tokens": 1.0})
