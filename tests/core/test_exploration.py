"""Whatever order the loop runs things in: the storm in orders that are made up.

Each number is a story of its own: what happens, on what family of limiters, in what order, on a
machine that is busy now and then, with tasks cancelled anywhere. A story that breaks a promise is
cut down to what is needed for that, and told. By hand, for as many as one likes::

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
# Each is a test of its own, so that they are shared out.
SHARES = 12

SECONDS = [0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.75]
COSTS = [1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 3.0]


def happening(chance: random.Random) -> Happening:
    """Make up what happens next."""
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
        """Leave out of it what is not needed for it to fail."""
        happenings, schedule = self.happenings, self.schedule

        def fails(happenings: list[Happening], schedule: Steps) -> bool:
            return Story(self.family, happenings, schedule).fails() is not None

        happenings = shrunk(happenings, lambda kept: fails(kept, self.schedule))
        schedule = shrunk(schedule, lambda kept: fails(happenings, kept))
        # What was needed before may not be any more.
        fewer = shrunk(happenings, lambda kept: fails(kept, schedule))
        return Story(self.family, fewer, schedule)


def story(number: int) -> Story:
    """Make a story up: the same one for the same number."""
    chance = random.Random(number)
    happenings = [happening(chance) for _ in range(chance.randint(3, 30))]
    if chance.random() < 0.3:
        happenings.append(Close(chance.randint(-1, 1), drain=chance.random() < 0.5))
        happenings += [happening(chance) for _ in range(chance.randint(0, 4))]
    schedule = sorted(made_up(chance, 400).items())
    return Story(chance.choice(FAMILIES), happenings, schedule)


def tell(number: int) -> None:
    """Run the story, and fail with what is left of it, if it breaks a promise."""
    if (error := story(number).fails()) is None:
        return
    short = story(number).cut_down()
    error = short.fails() or error
    notes = "\n".join(getattr(error, "__notes__", []))
    pytest.fail(f"story {number}: {error!r}\n\n{short}\n\n{notes}", pytrace=False)


def test_no_timer_is_left_of_a_consumer_that_was_swept_up_before_its_first_step() -> None:
    """What is left of story 67,535 of the first hundred thousand."""
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


def test_a_limit_that_is_lowered_and_raised_again_leaves_in_line_who_stood_at_the_parent() -> None:
    """What is left of story 44,006 of another hundred thousand: the storm took it for gone."""
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
def test_in_whatever_order_things_run_all_promises_hold(share: int) -> None:
    for number in range(share, SCHEDULES, SHARES):
        tell(number)
