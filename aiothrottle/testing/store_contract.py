"""What every store has to keep, as checks that anybody's store can be put to.

Each of `CHECKS` is an async function of two arguments: one that makes a store, and the clock that
the store goes by. All stores that are made for one check share their records, as those of several
processes would, and there are none at the beginning::

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_store(check):
        clock = ManualClock()
        records = {}
        await check(lambda: MyStore(records, clock=clock), clock)

They raise `AssertionError` for what is wrong.
"""

import asyncio
import math
import random
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    RollingWindow,
    SlidingWindow,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.stores import Answer, Key, Store

__all__ = ["CHECKS", "LAWS", "ManualClock", "OneByOne"]


class ManualClock:
    """A clock that stands still until it is told to go on, or back.

    >>> clock = ManualClock(100.0)
    >>> clock.advance(0.5)
    >>> clock()
    100.5
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        """Tell the time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so much time pass. Less than none sets the clock back."""
        self.now += seconds


Make: TypeAlias = Callable[[], Store]
Check: TypeAlias = Callable[[Make, ManualClock], Awaitable[None]]

CHECKS: list[Check] = []
"""The checks: async functions of what makes a store, and of its clock."""


def _check(check: Check) -> Check:
    CHECKS.append(check)
    return check


class OneByOne(Algorithm[list[float]]):
    """One token a second: a law that no store can have heard of."""

    @property
    def capacity(self) -> float:
        """One."""
        return 1.0

    def start(self) -> list[float]:
        """Give the instant from which on one may go."""
        return [-math.inf]

    def delay(self, state: list[float], now: float, cost: float) -> float:
        """Seconds until then."""
        return 0.0 if not cost else math.inf if cost > 1 else max(0.0, state[0] - now)

    def take(self, state: list[float], now: float, cost: float) -> None:
        """Have the next one wait a second."""
        if cost:
            state[0] = max(state[0], now) + 1.0

    def remaining(self, state: list[float], now: float) -> float:
        """One, or none."""
        return float(state[0] <= now)

    def reset_after(self, state: list[float], now: float) -> float:
        """Seconds until then."""
        return max(0.0, state[0] - now)

    def refund(self, state: list[float], now: float, cost: float, at: float) -> None:  # noqa: ARG002
        """Let the next one go at once."""
        state[0] = min(state[0], max(now, at))

    def dump(self, state: list[float]) -> bytes:
        """Write the instant."""
        return struct.pack("<d", state[0])

    def load(self, data: bytes) -> list[float]:
        """Read it."""
        return list(struct.unpack("<d", data))


LAWS: list[Algorithm[Any]] = [
    RollingWindow("3/s"),
    RollingWindow("2.5/min"),
    RollingWindow("100/s"),
    TokenBucket("3/s", burst=2),
    LeakyBucket("3/s"),
    FixedWindow("3/s"),
    SlidingWindow("3/s", buckets=4),
    WaitUntil(1, 5, 10),
    Cooldown(3, 60),
    AllOf(RollingWindow("3/s"), RollingWindow("12/min")),
    AllOf(FixedWindow("3/700ms"), TokenBucket("5/s", burst=2), SlidingWindow("20/min")),
    AllOf(RollingWindow("5/s"), AllOf(Cooldown(4, 1), Unlimited())),
    Unlimited(),
    OneByOne(),
]
"""One of each law, and some of several at once."""

_TEN = RollingWindow("10/s")


@_check
async def what_fits_is_taken_and_the_rest_is_told_when(make: Make, clock: ManualClock) -> None:
    """Three of five may go now, the fourth in a second."""
    store = make()
    answer = await store.reserve("key", RollingWindow("3/s"), [1, 1, 1, 1, 1])
    assert answer.delays == (0.0, 0.0, 0.0), answer
    _about(answer, retry_after=1.0, remaining=0.0, reset_after=1.0)
    clock.advance(0.5)
    _about(await store.peek("key", RollingWindow("3/s")), retry_after=0.5, remaining=0.0)
    clock.advance(0.6)
    _about(await store.reserve("key", RollingWindow("3/s"), [1]), remaining=2.0, retry_after=0.0)


@_check
async def what_goes_within_the_horizon_is_taken_ahead(make: Make, clock: ManualClock) -> None:
    """Slots of the time to come are given out in order, up to the horizon and no further."""
    store = make()
    pace = TokenBucket("4/s", burst=1)
    answer = await store.reserve("key", pace, [1] * 9, horizon=1.1)
    assert _close(answer.delays, (0.0, 0.25, 0.5, 0.75, 1.0)), answer
    _about(answer, retry_after=1.25, remaining=0.0)
    clock.advance(0.5)
    answer = await make().reserve("key", pace, [1] * 9, horizon=1.1)
    assert _close(answer.delays, (0.75, 1.0)), answer


@_check
async def nobody_goes_before_who_asked_earlier(make: Make, clock: ManualClock) -> None:
    """A heavy cost is overtaken neither by those behind it nor by those who ask after it."""
    store = make()
    await store.reserve("key", _TEN, [5])
    clock.advance(0.25)
    answer = await store.reserve("key", _TEN, [8, 1])
    assert answer.delays == (), answer
    answer = await store.reserve("key", _TEN, [8], horizon=2)
    assert _close(answer.delays, (0.75,)), answer
    answer = await make().reserve("key", _TEN, [1, 1, 1], horizon=0.8)
    assert _close(answer.delays, (0.75, 0.75)), answer
    fixed = FixedWindow("10/s")
    clock.advance(1000.25 - clock() % 1)
    await store.reserve("fixed", fixed, [5, 8], horizon=2)
    answer = await store.reserve("fixed", fixed, [1])
    assert not answer.instants, answer
    _about(answer, retry_after=0.75, remaining=0.0)


@_check
async def a_refusal_spends_nothing(make: Make, clock: ManualClock) -> None:
    """However often it is refused, it may go when it was told."""
    store = make()
    for law in LAWS:
        answer = await store.reserve(repr(law), law, [1] * 200)
        if answer.retry_after == 0.0:
            continue  # no limit
        for _ in range(3):
            again = await store.reserve(repr(law), law, [1] * 200)
            assert not again.instants, (law, again)
            _about(again, retry_after=answer.retry_after)
    clock.advance(60.0)
    for law in LAWS:
        assert (await store.reserve(repr(law), law, [1])).delays == (0.0,), law


@_check
async def a_question_spends_nothing_and_is_answered_right(make: Make, clock: ManualClock) -> None:
    """What `peek` says of a cost is what `reserve` says of it then."""
    store = make()
    for law in LAWS:
        for _ in range(12):
            await store.peek(repr(law), law, 1)
            told = await store.peek(repr(law), law, 1)
            answer = await store.reserve(repr(law), law, [1], horizon=1000)
            assert _close(answer.delays, (told.retry_after,)), (law, told, answer)
            clock.advance(0.1)
    _about(await store.peek("fresh", _TEN, 7), retry_after=0.0, remaining=10.0, reset_after=0.0)


@_check
async def what_happened_is_counted_without_asking(make: Make, clock: ManualClock) -> None:
    """There may be a debt afterwards, and it is paid by waiting."""
    store = make()
    _about(await store.record("key", _TEN, 4), remaining=6.0, retry_after=0.0)
    clock.advance(0.5)
    _about(await store.record("key", _TEN, 11), remaining=0.0)
    _about(await store.peek("key", _TEN), retry_after=1.0)
    clock.advance(0.5)
    _about(await store.peek("key", _TEN), retry_after=0.5)


@_check
async def what_is_given_back_can_be_had_again(make: Make, clock: ManualClock) -> None:
    """To the last token, at the instant that it was taken for; and nothing is given back twice."""
    store = make()
    answer = await store.reserve("key", _TEN, [1] * 9 + [0.5])
    for instant in answer.instants[:3]:
        await make().refund("key", _TEN, 1, instant)
    _about(await store.peek("key", _TEN), remaining=3.5)
    clock.advance(0.5)
    answer = await store.reserve("key", _TEN, [1, 1, 1, 1], horizon=1)
    assert _close(answer.delays, (0.0, 0.0, 0.0, 0.5)), answer
    await store.refund("key", _TEN, 1, answer.instants[-1])
    clock.advance(0.5)
    _about(await store.peek("key", _TEN), remaining=7.0)
    (instant,) = (await store.reserve("whole", _TEN, [2])).instants
    await store.refund("whole", _TEN, 2, instant)
    assert len((await store.reserve("whole", _TEN, [5, 5, 1])).instants) == 2
    await store.refund("nobody", _TEN, 1, clock())
    _about(await store.peek("nobody", _TEN), remaining=10.0)


@_check
async def what_others_go_on_the_strength_of_is_not_given_back(
    make: Make, clock: ManualClock
) -> None:
    """Where one goes at a time and some are to go later, an earlier slot makes no room."""
    store = make()
    for law in (WaitUntil(1, 5, 10), LeakyBucket("1/s"), TokenBucket("1/s", burst=1)):
        one, both = repr(law), AllOf(RollingWindow("9/s"), law)
        answer = await store.reserve(one, law, [1, 1, 1], horizon=5)
        await store.reserve("both" + one, both, [1, 1, 1], horizon=5)
        clock.advance(0.25)
        for key, asked in ((one, law), ("both" + one, both)):
            await store.refund(key, asked, 1, answer.instants[0])
            told = await store.peek(key, asked)
            assert told.retry_after > 2.7, (asked, told)
        # The last one does, and what had not drained when nobody is behind it.
        await store.refund(one, law, 1, answer.instants[2])
        _about(await store.reserve(one, law, [1], horizon=0), retry_after=answer.delays[2] - 0.25)
        await store.clear(one)
        answer = await store.reserve(one, law, [1])
        clock.advance(0.5)
        await store.refund(one, law, 1, answer.instants[0])
        _about(await store.peek(one, law), retry_after=0.0)


@_check
async def a_refund_does_not_forget_the_present(make: Make, clock: ManualClock) -> None:
    """Who gave back a slot of the next period has not freed any of this one."""
    store, fixed = make(), FixedWindow("2/s")
    clock.advance(1000.25 - clock() % 1)
    answer = await store.reserve("key", fixed, [1, 1, 1], horizon=1)
    assert _close(answer.delays, (0.0, 0.0, 0.75)), answer
    await store.refund("key", fixed, 1, answer.instants[-1])
    assert not (await store.reserve("key", fixed, [1])).instants
    clock.advance(0.8)
    assert len((await store.reserve("key", fixed, [1, 1, 1])).instants) == 2


@_check
async def a_record_can_be_cleared(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Then it is as if nothing had been."""
    store = make()
    for law in LAWS:
        fresh = await store.peek("key", law)
        once = await store.reserve("key", law, [1])
        told = await store.peek("key", law)
        await make().clear("key")
        assert await store.peek("key", law) == fresh, law
        assert await store.reserve("key", law, [1]) == once, law
        assert await store.peek("key", law) == told, law
        await store.clear("key")
    await store.clear("nobody")


@_check
async def a_cost_of_nothing_may_always_go(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """And changes nothing."""
    store = make()
    await store.record("key", _TEN, 15)
    told = await store.peek("key", _TEN)
    answer = await store.reserve("key", _TEN, [0, 0])
    assert answer.delays == (0.0, 0.0), answer
    assert (await store.peek("key", _TEN, 0)).retry_after == 0.0
    await store.record("key", _TEN, 0)
    assert await store.peek("key", _TEN) == told


@_check
async def what_can_never_go_is_told_so(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """With an infinite delay, and it is not taken for an infinite horizon."""
    store = make()
    for horizon in (0.0, math.inf):
        answer = await store.reserve("key", _TEN, [1, 11, 1], horizon=horizon)
        assert answer.retry_after == math.inf, answer
        assert answer.delays == (0.0,), answer


@_check
async def what_makes_no_sense_is_refused(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """A negative cost would make tokens."""
    store = make()
    for cost in (-1.0, math.nan, math.inf):
        for call in (
            store.reserve("key", _TEN, [1, cost]),
            store.peek("key", _TEN, cost),
            store.record("key", _TEN, cost),
            store.refund("key", _TEN, cost, 0.0),
        ):
            await _raises(ValueError, call)
    for horizon in (-1.0, math.nan):
        await _raises(ValueError, store.reserve("key", _TEN, [1], horizon=horizon))
    await _raises(ValueError, store.refund("key", _TEN, 1, math.nan))
    for key in (1, None, b"key", ["key"], ("key", 1)):
        await _raises(TypeError, store.record(cast("Key", key), _TEN))
    _about(await store.peek("key", _TEN), remaining=10.0)


@_check
async def many_at_once_get_the_limit_and_no_more(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Sixty-four tasks with four stores between them: ten go."""
    stores = [make() for _ in range(4)]
    for law in (_TEN, TokenBucket("10/s"), AllOf(_TEN, FixedWindow("50/min")), AllOf(AllOf(_TEN))):
        answers = await asyncio.gather(
            *(stores[place % 4].reserve(repr(law), law, [1]) for place in range(64))
        )
        assert sum(len(answer.instants) for answer in answers) == 10, law


@_check
async def several_limits_are_all_taken_or_none(make: Make, clock: ManualClock) -> None:
    """What one of them refuses costs nothing of the other."""
    store = make()
    both = AllOf(RollingWindow("2/s"), RollingWindow("5/min"))
    for _ in range(2):
        assert len((await store.reserve("key", both, [1] * 9)).instants) == 2
        clock.advance(1.0)
    answer = await store.reserve("key", both, [1] * 9)
    assert len(answer.instants) == 1, answer
    _about(answer, retry_after=58.0)


@_check
async def a_clock_that_steps_back_mints_nothing(make: Make, clock: ManualClock) -> None:
    """What was spent is spent until as much time has passed as before."""
    store = make()
    for law in LAWS:
        if law == Unlimited():
            continue
        clock.advance(100.0)
        while (answer := await store.reserve(repr(law), law, [1])).instants:
            pass
        clock.advance(-20.0)
        again = await store.reserve(repr(law), law, [1])
        assert not again.instants, (law, again)
        _about(again, retry_after=answer.retry_after)
        clock.advance(answer.retry_after / 2)
        assert not (await store.reserve(repr(law), law, [1])).instants, law


@_check
async def nobody_waits_for_a_clock_that_stepped_back(make: Make, clock: ManualClock) -> None:
    """Time goes on from where it was; but not where each machine has its own: see `one_clock`."""
    store = make()
    for law in LAWS:
        if law == Unlimited():
            continue
        clock.advance(100.0)
        while (answer := await store.reserve(repr(law), law, [1])).instants:
            pass
        clock.advance(-20.0)
        assert not (await store.reserve(repr(law), law, [1])).instants, law
        clock.advance(answer.retry_after + 1e-5)
        assert (await store.reserve(repr(law), law, [1])).delays == (0.0,), law


@_check
async def what_is_over_is_forgotten(make: Make, clock: ManualClock) -> None:
    """After `reset_after` the record is as good as none."""
    store = make()
    for law in LAWS:
        fresh = await store.peek(repr(law), law)
        answer = await store.reserve(repr(law), law, [1, 1], horizon=2)
        assert answer.reset_after > 0.0 or law == Unlimited(), law
        clock.advance(answer.reset_after + 1e-5)
        again = await store.peek(repr(law), law)
        _about(again, remaining=fresh.remaining, retry_after=0.0, reset_after=0.0)


@_check
async def it_decides_as_the_law_in_memory_does(make: Make, clock: ManualClock) -> None:
    """Of every law, whatever is asked of it, in whatever order."""
    dice = random.Random(6)
    for law in LAWS:
        store, state, last = make(), law.start(), -math.inf
        for _ in range(40):
            clock.advance(dice.choice([0.0, 0.0, 0.05, 0.3, 1.1]))
            now, cost = max(clock(), last), dice.choice([1.0, 1.0, 1.0, 0.5, 2.0])
            wait = now + law.delay(state, now, cost) - clock()
            horizon = dice.choice([0.0, 0.0, 1.0])
            answer = await store.reserve(repr(law), law, [cost], horizon=horizon)
            if wait > horizon + 1e-6:
                assert not answer.instants, (law, wait, answer)
                _about(answer, retry_after=wait)
            else:
                assert _close(answer.delays, (wait,)), (law, wait, answer)
                last = clock() + wait
                law.take(state, last, cost)
            _about(answer, reset_after=max(law.reset_after(state, clock()), last - clock()))


@_check
async def refused_hits_accumulate_where_the_law_says_so(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Ten hits at once on `WaitUntil`: one goes, five wait, four are refused; then it is 10 s."""
    store, law = make(), WaitUntil(1, 5, 10)
    waits: list[float] = []
    for _ in range(12):
        answer = await store.reserve("key", law, [1], horizon=law.longest_wait)
        waits.append(answer.delays[0] if answer.instants else answer.retry_after)
        if not answer.instants:
            await store.record("key", law)
    assert _close(waits, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10)), waits


@_check
async def a_long_line_is_one_question(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Ten thousand costs, of which a hundred go each second."""
    answer = await make().reserve("key", RollingWindow("100/s"), [1] * 10_000, horizon=98.5)
    assert len(answer.instants) == 9900, len(answer.instants)
    assert _close(answer.delays[-1:], (98.0,)), answer.delays[-1]
    _about(answer, retry_after=99.0)


@_check
async def any_text_is_a_key_of_its_own(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Blanks, braces, colons, what is no ASCII or no character at all, and a megabyte."""
    keys: list[Key] = [
        "",
        " ",
        "a b",
        "a\r\nb",
        "a\0b",
        "{a}b",
        "}{",
        "{}",
        "%",
        "%25",
        "é",
        "\udcff",
    ]
    keys += ["a:b", ("a", "b"), ("a:b", ""), ("a", ":b"), ("", "a"), ("a", ""), "a", "A", "#"]
    keys += ["x" * 1_000_000, "x" * 999_999 + "y", "x" * 999_999, ("x" * 199, "y"), "é" * 100]
    store = make()
    for key in keys:
        assert len((await store.reserve(key, _TEN, [1])).instants) == 1
    for key in keys:
        _about(await store.peek(key, _TEN), remaining=9.0)
        await store.clear(key)
    for key in keys:
        _about(await store.peek(key, _TEN), remaining=10.0)


@_check
async def a_lower_limit_may_be_asked_of_the_same_record(make: Make, clock: ManualClock) -> None:
    """Of a rolling window, a shorter period too, without changing what it is."""
    store, minute = make(), RollingWindow("100/min")
    for _ in range(6):
        await store.reserve("key", minute, [1, 1])
        clock.advance(1.0)
    for asked, retry_after, remaining in (
        (RollingWindow("100/min"), 0.0, 88.0),
        (RollingWindow("12/min"), 54.0, 0.0),
        (RollingWindow("3/2.5s"), 0.5, 0.0),
        (RollingWindow("5/2.5s"), 0.0, 1.0),
        (RollingWindow("4/500ms"), 0.0, 4.0),
    ):
        _about(await store.peek("key", asked), retry_after=retry_after, remaining=remaining)
    _about(await store.peek("key", minute), remaining=88.0)


@_check
async def limiters_of_two_limits_on_one_key_are_each_held_to_their_own(
    make: Make, clock: ManualClock
) -> None:
    """By what both have spent."""
    for slow, fast in (
        (RollingWindow("5/s"), RollingWindow("10/s")),
        (TokenBucket("5/s"), TokenBucket("10/s")),
        (FixedWindow("5/s"), FixedWindow("10/s")),
        (AllOf(RollingWindow("5/s"), _TEN), AllOf(RollingWindow("10/s"), _TEN)),
    ):
        store = make()
        assert len((await store.reserve(repr(slow), slow, [1] * 20)).instants) == 5, slow
        went = len((await store.reserve(repr(slow), fast, [1] * 20)).instants)
        assert went == 5 or (isinstance(slow, TokenBucket) and went == 0), fast
        assert not (await store.reserve(repr(slow), slow, [1])).instants, slow
        clock.advance(3.0)
        assert len((await store.reserve(repr(slow), slow, [1] * 20)).instants) == 5, slow


@_check
async def another_law_on_the_key_is_told_and_harms_nothing(make: Make, clock: ManualClock) -> None:
    """Windows of another period, too: their counts would mean something else."""
    clock.advance(-clock() % 60)
    laws: list[Algorithm[Any]] = [
        TokenBucket("10/s"),
        Cooldown(10, 1),
        RollingWindow("10/s"),
        FixedWindow("10/s"),
        FixedWindow("10/min"),
        SlidingWindow("10/s", buckets=2),
        SlidingWindow("10/s", buckets=3),
        AllOf(RollingWindow("10/s"), RollingWindow("10/s")),
        OneByOne(),
    ]
    store = make()
    for law in laws:
        await store.reserve("key", law, [1])
        told = await store.peek("key", law)
        for other in laws:
            if other is not law:
                for call in (
                    store.reserve("key", other, [1]),
                    store.peek("key", other),
                    store.record("key", other),
                    store.refund("key", other, 1, clock()),
                ):
                    await _raises(ValueError, call)
        assert await store.peek("key", law) == told, law
        await store.clear("key")


@dataclass
class _Wanted:
    """What an answer should say, where it is asked about."""

    now: float | None = None
    retry_after: float | None = None
    remaining: float | None = None
    reset_after: float | None = None


def _about(answer: Answer, **wanted: float) -> None:
    for name, value in vars(_Wanted(**wanted)).items():
        if value is not None:
            assert _close((getattr(answer, name),), (value,)), (name, value, answer)


def _close(found: "tuple[float, ...] | list[float]", wanted: tuple[float, ...]) -> bool:
    # A store may keep microseconds.
    return len(found) == len(wanted) and all(
        math.isclose(one, other, rel_tol=0.0, abs_tol=2e-6) or one == other
        for one, other in zip(found, wanted, strict=True)
    )


async def _raises(error: type[Exception], call: Awaitable[object]) -> None:
    with suppress(error):
        answer = await call
        raise AssertionError(f"{call} gave {answer}: it has to raise {error.__name__}")
