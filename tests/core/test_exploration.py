"""The storm in random orders: every promise holds in whatever order the event loop runs callbacks.

Each number is a story of its own: what happens, on what family of limiters, in what order, on a
machine that is busy now and then, with tasks cancelled anywhere. A story that breaks a promise is
shrunk to its shortest failing form and printed. To run any number of stories::

    AIOTHROTTLE_SCHEDULES=100000 uv run pytest tests/core/test_exploration.py -n auto --timeout 0
"""

import os
import random
from dataclasses import dataclass
from typing import TypeAlias, get_args

import pytest

from tests.interleaving import Cancel as Stop
from tests.interleaving import Disturbance, Overtake, Pass, made_up, shrunk
from tests.storm import (
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

pytestmark = pytest.mark.slow

Steps: TypeAlias = list[tuple[int, Disturbance]]

SCHEDULES = int(os.environ.get("AIOTHROTTLE_SCHEDULES", "1200"))
FAMILIES: tuple[Family, ...] = get_args(Family)
# Each share is a test of its own, so that the workers divide them.
SHARES = 12

SECONDS = [0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75]
COSTS = [1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 3.0]


def happening(chance: random.Random) -> Happening:
    """Return a random next event."""
    kind = chance.choice(["come"] * 10 + ["wait"] * 5 + ["try", "try"] + ["change"] * 4)
    pick, where = chance.choice, chance.randint(0, 1)
    if kind == "come":
        timeout, settle = pick([None, None, None, 0.0, 0.5, 2.0]), pick([None, None, 0.0, 4.0])
        return Come(where, pick(COSTS), pick([0, 0, 0, 1, 3]), timeout, pick(SECONDS), settle)
    if kind == "wait":
        return Wait(pick(SECONDS))
    if kind == "try":
        return Try(where, pick(COSTS[:-1]), pick(SECONDS))
    changes: list[Happening] = [
        Cancel(chance.randrange(8)),
        Pause(chance.randint(-1, 1), pick(SECONDS)),
        Rate(where, pick([2, 3, 5])),
        Slots(where, pick([1, 2, 4])),
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
    return Story(chance.choice(FAMILIES), happenings, schedule)


def check(number: int) -> None:
    """Run the story; if it breaks a promise, fail with its shortest form."""
    if (error := story(number).fails()) is None:
        return
    short = story(number).cut_down()
    error = short.fails() or error
    notes = "\n".join(getattr(error, "__notes__", []))
    pytest.fail(f"story {number}: {error!r}\n\n{short}\n\n{notes}", pytrace=False)


def test_consumer_swept_before_its_start_leaves_no_timer() -> None:
    """Story 67,535 of the first hundred thousand, shrunk."""
    happenings: list[Happening] = [
        Come(0, 2.0, 1, 2.0, 0.5, 4.0),
        Come(0, 0.0, 0, None, 0.0, None),
        Cancel(1),
        Come(0, 2.0, 3, None, 0.25, 4.0),
        Come(0, 1.0, 0, 2.0, 0.0, None),
        Come(1, 1.0, 1, 2.0, 0.0, 4.0),
        Wait(1.75),
        Come(1, 3.0, 0, 0.0, 0.0, 4.0),
        Rate(0, 2),
        Come(0, 1.0, 1, None, 0.5, 4.0),
    ]
    schedule: Steps = [
        (12, Pass(2.0)),
        (17, Overtake(5)),
        (23, Stop(4)),
        (29, Overtake(2)),
        (30, Stop(10)),
        (31, Overtake(1)),
    ]
    rage(happenings, "alone", dict(schedule))


def test_lowered_and_raised_limit_keeps_parent_waiters() -> None:
    """Story 44,006 of another hundred thousand, shrunk: the storm missed the waiter."""
    rage(
        [
            Pause(-1, 0.5),
            Come(0, 3.0, 0, None, 0.0, None),
            Come(0, 0.5, 0, None, 0.0, None),
            Wait(0.25),
            Rate(0, 2),
            Rate(0, 3),
            Pause(0, 1.0),
            Come(0, 1.0, 3, None, 0.0, None),
        ],
        "parent",
    )


@pytest.mark.parametrize("share", range(SHARES))
def test_promises_hold_in_any_order_of_callbacks(share: int) -> None:
    for number in range(share, SCHEDULES, SHARES):
        check(number)
