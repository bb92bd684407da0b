"""The storm: every promise of a limiter holds, whatever happens, in any order of callbacks.

Each number is a story of its own: what happens, on what family of limiters, in what order, on a
machine that is busy now and then, with tasks cancelled anywhere. A story that breaks a promise is
shrunk to its shortest failing form and printed. To run any number of stories::

    AIOTHROTTLE_TEST_EFFORT=100 uv run pytest tests/core/test_storm.py -n auto --timeout 0
"""

import random
from dataclasses import dataclass
from typing import TypeAlias, get_args

import pytest

from tests.support.effort import seeds
from tests.support.interleaving import Disturbance, made_up, shrunk
from tests.support.storm import (
    Cancel,
    Close,
    Come,
    Family,
    Happening,
    Pause,
    Rate,
    Slots,
    Try,
    Wait,
    rage,
)

Steps: TypeAlias = list[tuple[int, Disturbance]]

FAMILIES: tuple[Family, ...] = get_args(Family)
# Each share is a test of its own, so that the workers divide them.
SHARES = 6

SECONDS = [0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75]
COSTS = [1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 3.0]
PRIORITIES = [0, 0, 0, 1, 3]
TIMEOUTS = [None, None, None, 0.0, 0.5, 2.0]


def happening(chance: random.Random, *, plain: bool = False) -> Happening:
    """Return a random next event; `plain`: with requests that may take the fast path."""
    kind = chance.choice(["come"] * 10 + ["wait"] * 5 + ["try", "try"] + ["change"] * 4)
    pick, where = chance.choice, 0 if plain else chance.randint(0, 1)
    if kind == "come" and plain:
        return Come(0, 1.0, 0, None, pick([0.0, 0.0, 0.5]), None)
    if kind == "come":
        timeout, settle = pick(TIMEOUTS), pick([None, None, 0.0, 4.0])
        return Come(where, pick(COSTS), pick(PRIORITIES), timeout, pick(SECONDS), settle)
    if kind == "wait":
        return Wait(pick(SECONDS))
    if kind == "try":
        return Try(where, pick(COSTS[:-1]), pick(SECONDS))
    changes: list[Happening] = [
        Cancel(chance.randrange(8)),
        Pause(where if plain else chance.randint(-1, 1), pick(SECONDS)),
        Rate(where, pick([2, 3, 5])),
        Slots(where, pick([1, 2, 4, None])),
    ]
    return pick(changes)


@dataclass(frozen=True)
class Story:
    family: Family
    happenings: list[Happening]
    schedule: Steps

    def fails(self) -> Exception | None:
        try:
            rage(self.happenings, self.family, dict(self.schedule))
        except Exception as error:  # noqa: BLE001 - each is a promise that was broken
            return error
        return None

    def cut_down(self) -> "Story":
        """Return the shortest part of the story that still fails."""
        happenings, schedule = self.happenings, self.schedule

        def fails(happenings: list[Happening], schedule: Steps) -> bool:
            return Story(self.family, happenings, schedule).fails() is not None

        happenings = shrunk(happenings, lambda kept: fails(kept, self.schedule))
        schedule = shrunk(schedule, lambda kept: fails(happenings, kept))
        # An event that was needed before may no longer be.
        fewer = shrunk(happenings, lambda kept: fails(kept, schedule))
        return Story(self.family, fewer, schedule)


def story(number: int) -> Story:
    """Return the story of a number, always the same."""
    chance = random.Random(number)
    happenings = [happening(chance) for _ in range(chance.randint(3, 30))]
    if chance.random() < 0.3:
        happenings.append(Close(chance.randint(-1, 1), drain=chance.random() < 0.5))
        happenings += [happening(chance) for _ in range(chance.randint(0, 4))]
    schedule = sorted(made_up(chance, 400).items())
    family = chance.choice(FAMILIES)
    # Some stories are long, and in the order of asyncio.
    if chance.random() < 0.3:
        plain = family == "alone"
        happenings, schedule = [happening(chance, plain=plain) for _ in range(50)], []
    return Story(family, happenings, schedule)


def check(number: int) -> None:
    """Run the story; if it breaks a promise, fail with its shortest form."""
    if (error := story(number).fails()) is None:
        return
    short = story(number).cut_down()
    error = short.fails() or error
    notes = "\n".join(getattr(error, "__notes__", []))
    pytest.fail(f"story {number}: {error!r}\n\n{short}\n\n{notes}", pytrace=False)


@pytest.mark.parametrize("share", range(SHARES))
def test_promises_hold_in_any_order_of_callbacks(share: int) -> None:
    for number in seeds(200)[share::SHARES]:
        check(number)


@pytest.mark.parametrize(("family", "end"), [("alone", 2.0), ("parent", 4.0), ("keyed", 4.0)])
def test_storm_grants_every_guest(family: Family, end: float) -> None:
    """Otherwise it could not fail."""
    storm = rage([Come(at % 2, 1.0, 0, None, 0.0, None) for at in range(18)], family)
    assert [len(guest.charged) for guest in storm.guests] == [1] * 18
    assert max(at for guest in storm.guests for at, _ in guest.charged) == end
