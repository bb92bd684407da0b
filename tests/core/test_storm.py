"""The storm in the order of asyncio: whatever happens, what a limiter promises holds."""

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.storm import Cancel, Come, Family, Happening, Pause, Rate, Slots, Wait, rage

SECONDS = st.sampled_from([0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75])
COSTS = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 3.0])
WHERE = st.integers(0, 1)
COMES = st.builds(
    Come,
    WHERE,
    COSTS,
    st.sampled_from([0, 0, 0, 1, 3]),
    st.sampled_from([None, None, None, 0.0, 0.5, 2.0]),
    SECONDS,
    st.sampled_from([None, None, 0.0, 0.5, 4.0]),
)
WAITS = st.builds(Wait, SECONDS)
HAPPENINGS: st.SearchStrategy[Happening] = st.one_of(
    COMES,
    COMES,
    COMES,
    WAITS,
    WAITS,
    st.builds(Cancel, st.integers(0, 7)),
    st.builds(Pause, st.integers(-1, 1), SECONDS),
    st.builds(Rate, WHERE, st.sampled_from([2, 3, 5])),
    st.builds(Slots, WHERE, st.sampled_from([1, 2, 4])),
)


@settings(max_examples=300)
@given(st.lists(HAPPENINGS, min_size=20, max_size=60))
def test_invariants_hold_in_a_storm(happenings: list[Happening]) -> None:
    rage(happenings)


# Slots are removed in the very turn in which a waiter was granted one.
LOWERED: list[Happening] = [
    Come(0, 1.0, 0, None, 0.0, None),
    Come(0, 1.0, 0, None, 0.125, None),
    Come(0, 1.0, 0, None, 1.0, None),
    Come(0, 1.0, 0, None, 0.0, None),
    Come(0, 1.0, 0, None, 0.0, None),
    Slots(0, 4),
    Come(0, 2.0, 0, None, 0.0, None),
    Wait(0.5),
    Come(0, 1.0, 0, 0.0, 0.0, None),
    Wait(0.5),
    Slots(0, 1),
]


@settings(max_examples=300)
@example(LOWERED)
@given(st.lists(HAPPENINGS, min_size=20, max_size=60))
def test_invariants_hold_in_a_storm_with_a_parent(
    happenings: list[Happening],
) -> None:
    rage(happenings, "parent")


def test_storm_grants_every_guest() -> None:
    """Else it could not fail."""
    comes = [
        Come(where, 1.0, 0, None, 0.0, None) for where, _ in itertools.product((0, 1), range(9))
    ]
    families: list[tuple[Family, float]] = [("alone", 2.0), ("parent", 4.0), ("keyed", 4.0)]
    for family, end in families:
        storm = rage([*comes], family)
        assert [len(guest.charged) for guest in storm.guests] == [1] * 18
        assert max(at for guest in storm.guests for at, _ in guest.charged) == end
