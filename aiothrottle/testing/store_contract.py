"""The contract of a store, as checks for any implementation: tables of decisions, and rules.

Each of `CHECKS` is an async function of two arguments: a function that makes a store, and the clock
of that store. All stores made for one check share their records, as the stores of several processes
would, and there are no records at the beginning. `SLOT_CHECKS` are those of shared slots::

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_store(check):
        clock = ManualClock()
        records = {}
        await check(lambda: MyStore(records, clock=clock), clock)

A failed check raises `AssertionError`.
"""

import asyncio
import math
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Any, TypeAlias, TypeVar, cast, get_args

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.amounts import amounts, by_name
from aiothrottle.stores import Answer, Claim, Granted, Key, MemoryStore, SlotStore, Store
from aiothrottle.stores.store import Method, Step
from aiothrottle.testing.virtual_time import ManualClock

__all__ = ["ALGORITHMS", "CHECKS", "SLOT_CHECKS", "ManualClock"]

Make: TypeAlias = Callable[[], Store]
Check: TypeAlias = Callable[[Make, ManualClock], Awaitable[None]]
_Check = TypeVar("_Check", bound=Callable[..., Awaitable[None]])


class OneByOne(LeakyBucket):
    """One token per second: an algorithm of a user's own, as no store knows its class."""

    def __init__(self) -> None:
        super().__init__("1/s")


TEN = SlidingWindowLog("10/s")
ALGORITHMS: list[Algorithm[Any]] = [
    SlidingWindowLog("3/s"),
    SlidingWindowLog("2.5/min"),
    SlidingWindowLog("100/s"),
    TokenBucket("3/s", burst=2),
    LeakyBucket("3/s"),
    FixedWindow("3/s"),
    SlidingWindowCounter("3/s", buckets=4),
    WaitUntil(1, 5, 10),
    Cooldown(3, 60),
    AllOf(SlidingWindowLog("3/s"), SlidingWindowLog("12/min")),
    AllOf(FixedWindow("3/700ms"), TokenBucket("5/s", burst=2), SlidingWindowCounter("20/min")),
    AllOf(SlidingWindowLog("5/s"), AllOf(Cooldown(4, 1), Unlimited())),
    PerResource(("tokens", FixedWindow("9/s")), ("requests", SlidingWindowLog("3/s"))),
    Unlimited(),
    OneByOne(),
]
"""One of each algorithm, and combinations of several."""

# ---- decisions -----------------------------------------------------------------------------------

_RESOURCES = PerResource(("requests", SlidingWindowLog("4/s")), ("tokens", TokenBucket("10/s")))
_WINDOWS = PerResource(("requests", SlidingWindowLog("4/s")), ("tokens", SlidingWindowLog(9)))
# The steps of a row are with its algorithm on one key. Each is a call of another store than the
# one before: `take` is `Store.reserve`, with costs (1*9 are nine of 1), `within` the longest
# reservation; `refund 1 of 3` is for the fourth instant that was taken; `by` names another rate.
# Behind the arrow are the delays, and fields of the answer. `later` advances the clock; `phase`, to
# that part of a second.
# fmt: off
_SHARED = ("each of two limits on one key holds", """
    phase 0.25; take 1*20 -> 0*5; take 1*20 by 10/s -> 0*5; take 1 ->; later 3; take 1*20 -> 0*5""")
# Where requests start one at a time, a refund before later reservations frees nothing; that of the
# last one does, and so does what had not drained, if no reservation follows.
_BEHIND = ("a refund before later reservations frees nothing", """
    take 1*3 within 5 -> 0 1 2; later 0.25; refund 1 of 0; peek 1 -> wait 2.75""")
_LAST = ("the last refund frees its tokens", """
    take 1*3 within 5 -> 0 1 2; later 0.25; refund 1 of 2; take 1 -> wait 1.75; clear
    take 1 -> 0; later 0.5; refund 1 of 3; peek 1 -> wait 0""")
DECISIONS: list[tuple[Algorithm[Any], str, str]] = [
    (TEN, "earlier requests are not overtaken", """
        take 5 -> 0; later 0.25; take 8 1 ->; take 8 within 2 -> 0.75
        take 1*3 within 0.8 -> 0.75*2"""),
    (TEN, "a cost of zero is always taken", """
        record 15; take 0*2 -> 0*2; peek 0 -> wait 0; record 0; peek 1 -> wait 1 left 0 reset 1"""),
    (TEN, "what never fits has an infinite delay", """
        take 1 11 1 -> 0 wait inf; take 1 11 1 within inf -> 0 wait inf left 8"""),
    (TEN, "record counts without asking", """
        record 4 -> wait 0 left 6; later 0.5; record 11 -> left 0; peek 1 -> wait 1; later 0.5
        peek 1 -> wait 0.5"""),
    (TEN, "refunded tokens can be taken again", """
        take 1*9 0.5 -> 0*10; refund 1 of 0; refund 1 of 1; refund 1 of 2; peek 1 -> left 3.5
        later 0.5; take 1*4 within 1 -> 0*3 0.5; refund 1 of 13; later 0.5; peek 1 -> left 7
        take 2 -> 0; refund 2 of 14; take 5 2 1 -> 0*2"""),
    (SlidingWindowLog("3/s"), "what fits is taken with the delay of the rest", """
        take 1*5 -> 0*3 wait 1 left 0 reset 1; later 0.5; peek 1 -> wait 0.5 left 0; later 0.6
        take 1 -> 0 wait 0 left 2"""),
    (SlidingWindowLog("1000/s"), "a long queue is one call, and each of its costs counts", """
        take 1*10000 within 8.5 -> 0*1000 1*1000 2*1000 3*1000 4*1000 5*1000 6*1000 7*1000 8*1000
        peek 1 -> wait 9; clear; take 1*600 -> 0*600; later 0.5; take 1 -> 0; later 0.5
        take 1 -> 0 left 998; clear; take 5*70 -> 0*70; later 0.5; take 5*130 -> 0*130
        peek 353 -> wait 1"""),
    (SlidingWindowLog("100/min"), "a lower limit can use the same record", """
        take 1*4 -> 0*4; later 2; take 1*4 -> 0*4; later 2; take 1*4 -> 0*4; later 2
        peek 1 -> left 88; peek 1 by 12/min -> wait 54 left 0
        peek 1 by 3/2.5s -> wait 0.5 left 0; peek 1 by 5/2.5s -> wait 0 left 1
        peek 1 by 4/500ms -> wait 0 left 4; peek 1 -> wait 0 left 88"""),
    (SlidingWindowLog("5/s"), *_SHARED),
    (FixedWindow("5/s"), *_SHARED),
    (FixedWindow("10/s"), "no request overtakes one of the next period", """
        phase 0.25; take 5 8 within 2 -> 0 0.75; take 1 -> wait 0.75 left 0"""),
    (FixedWindow("2/s"), "a refund keeps the present period, and those of all leave nothing", """
        phase 0.25; take 1*3 within 1 -> 0*2 0.75; refund 1 of 2; take 1 ->; later 0.8
        take 1*3 -> 0*2; clear; take 0.1 0.2 -> 0*2; refund 0.1 of 5; refund 0.2 of 6
        peek 1 -> left 2 reset 0"""),
    (TokenBucket("4/s", burst=1), "tokens within the longest reservation are reserved", """
        take 1*9 within 1.1 -> 0 0.25 0.5 0.75 1 wait 1.25 left 0; later 0.5
        take 1*9 within 1.1 -> 0.75 1"""),
    (AllOf(SlidingWindowLog("2/s"), SlidingWindowLog("5/min")), "limits are all taken or none", """
        take 1*9 -> 0*2; later 1; take 1*9 -> 0*2; later 1; take 1*9 -> 0 wait 58"""),
    (_RESOURCES, "several resources are all taken or none", """
        take requests=1,tokens=6*2 1 -> 0 wait 0.2 left requests=3,tokens=4 reset 1
        take requests=1,tokens=6 1 within 0.5 -> 0.2*2 left requests=0,tokens=0; later 0.2
        peek tokens=1 -> wait 0.1; peek 1 -> wait 0; refund tokens=6 of 1
        peek tokens=6 -> wait 0; record requests=5; peek requests=1 -> wait 1"""),
    (_WINDOWS, "a cleared resource begins anew", """
        record requests=1,tokens=6; clear; record 1 -> left requests=3,tokens=9
        record 1 -> left requests=2,tokens=9"""),
    (WaitUntil(1, 5, 10), "rejected requests accumulate", """
        take 1*8 within 5.5 -> 0 1 2 3 4 5 wait 6; peek 1 -> wait 8; take 1 within 6 -> wait 8
        take 1 within 6 -> wait 9; take 1*2 within 6 -> wait 10; take 1 within 6 -> wait 10"""),
    (WaitUntil(1, 5, 10), "a recorded request counts, one that does not wait does not", """
        take 1 -> 0; take 1 -> wait 1; peek 1 -> wait 1; later 0.25; record 1; refund 1 of 0
        peek 1 -> wait 1.75"""),
    (WaitUntil(1, 5, 10), *_BEHIND),
    (WaitUntil(1, 5, 10), *_LAST),
    (TokenBucket("1/s", burst=1), *_BEHIND),
    (TokenBucket("1/s", burst=1), *_LAST),
    (AllOf(SlidingWindowLog("9/s"), WaitUntil(1, 5, 10)), *_BEHIND),
    (AllOf(SlidingWindowLog("9/s"), TokenBucket("1/s", burst=1)), *_BEHIND),
]
# fmt: on
_FIELDS = {"wait": "retry_after", "left": "remaining", "reset": "reset_after"}
_OPTIONS = {"within", "of", "by", *_FIELDS}


def close(found: float, wanted: float) -> bool:
    """Return whether both are equal, of each resource, to a microsecond or two."""
    # A store may keep microseconds.
    ours, theirs = by_name(found), by_name(wanted)
    pairs = ((ours.get(name, 0.0), theirs.get(name, 0.0)) for name in {*ours, *theirs})
    return all(math.isclose(*pair, rel_tol=0.0, abs_tol=2e-6) for pair in pairs)


def are_close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Return whether there are as many, and each is close."""
    return len(found) == len(wanted) and all(map(close, found, wanted))


async def raises(error: type[Exception], call: Awaitable[object]) -> None:
    """Assert that the call raises that error."""
    with suppress(error):
        answer = await call
        raise AssertionError(f"{call} returned {answer}: it must raise {error.__name__}")


def named(name: str, check: _Check) -> _Check:
    """Give a check its name."""
    check.__name__ = name.replace(" ", "_")
    return check


async def _follow(algorithm: Algorithm[Any], steps: str, make: Make, clock: ManualClock) -> None:
    stores, instants = (make(), make()), list[float]()
    for step in filter(str.strip, steps.replace(";", "\n").splitlines()):
        stores = stores[::-1]
        asked, _, wanted = step.partition("->")
        (method, *words), (delays, fields) = asked.split(), _read(wanted.split())
        costs, options = _read(words)
        match method:
            case "later":
                clock.advance(costs[0])
            case "phase":
                clock.advance(1000 + costs[0] - clock() % 1)
            case "clear":
                await stores[0].clear("key")
            case _:
                used = cast("Any", type(algorithm))(options["by"]) if "by" in options else algorithm
                seconds = instants[int(options["of"])] if "of" in options else 0.0
                seconds = float(options.get("within", seconds))
                name = cast("Method", "reserve" if method == "take" else method)
                call = Step(name, costs, seconds)
                if answer := await call.sent_to(stores[0], "key", used):
                    instants += answer.instants
                    found = [*answer.delays, *(getattr(answer, _FIELDS[name]) for name in fields)]
                    expected = [*delays, *map(_amount, fields.values())]
                    assert are_close(found, expected), (step, f"{answer!r:.999}")


def _read(words: list[str]) -> tuple[list[float], dict[str, str]]:
    """Read amounts, and the options behind them."""
    place = next((place for place, word in enumerate(words) if word in _OPTIONS), len(words))
    amounts: list[float] = []
    for word in words[:place]:
        one, _, times = word.partition("*")
        amounts += [_amount(one)] * int(times or 1)
    return amounts, dict(zip(words[place::2], words[place + 1 :: 2], strict=True))


def _amount(word: str) -> float:
    if "=" not in word:
        return float(word)
    pairs = (part.split("=") for part in word.split(","))
    return amounts({name: float(tokens) for name, tokens in pairs})


# ---- rules ---------------------------------------------------------------------------------------

_LIMITS = [algorithm for algorithm in ALGORITHMS if algorithm != Unlimited()]


async def it_decides_as_a_store_in_memory_does(make: Make, clock: ManualClock) -> None:
    """For every algorithm, over random calls: what is rejected or only peeked at spends nothing."""
    dice = random.Random(6)
    for algorithm in ALGORITHMS:
        stores, taken = (MemoryStore(clock=clock), make()), list[tuple[float, float]]()
        nearly = 0.0
        for _ in range(60):
            clock.advance(dice.choice([0.0, 0.0, 0.0, 0.05, 0.3, 1.1, nearly, 70.0]))
            costs = dice.choices([1.0, 1.0, 0.5, 2.0, 0.0], k=dice.randint(1, 3))
            seconds = dice.choice([0.0, 0.0, 1.0, 1000.0])
            method = dice.choice([*["reserve", "reserve", "peek", "record", "refund"] * 4, "clear"])
            if method == "clear":
                await asyncio.gather(*(store.clear(repr(algorithm)) for store in stores))
                continue
            if method == "refund":
                # Of a record without the tokens it frees nothing.
                place = dice.randrange(len(taken) + 1)
                costs[0], seconds = taken.pop(place) if place < len(taken) else (1.0, clock())
            if method != "reserve":
                del costs[1:]
            step = Step(cast("Method", method), costs, seconds)
            one, other = [await step.sent_to(store, repr(algorithm), algorithm) for store in stores]
            if one and other:
                taken += zip(costs, one.instants, strict=False)
                nearly = max(0.0, min(one.retry_after - 0.001, 70.0))
                assert are_close(_numbers(other), _numbers(one)), (algorithm, step, one, other)


def _numbers(answer: Answer) -> list[float]:
    return [*answer.delays, answer.retry_after, answer.remaining, answer.reset_after]


async def bad_arguments_are_rejected(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """A negative cost would make tokens."""
    store = make()
    for cost in (-1.0, math.nan, math.inf):
        await raises(ValueError, store.reserve("key", TEN, [1, cost]))
        for call in (store.peek, store.record, partial(store.refund, instant=0.0)):
            await raises(ValueError, call("key", TEN, cost))
    for max_reservation in (-1.0, math.nan):
        await raises(ValueError, store.reserve("key", TEN, [1], max_reservation=max_reservation))
    await raises(ValueError, store.refund("key", TEN, 1, math.nan))
    await raises(ValueError, store.record("resources", _RESOURCES, amounts({"tokens": math.nan})))
    for key in (1, None, b"key", ["key"], ("key", 1)):
        await raises(TypeError, store.record(cast("Key", key), TEN))
    for method in get_args(Method):
        await raises(TypeError, Step(method, [1]).sent_to(store, "key", cast("Any", "10/s")))
    assert close((await store.peek("key", TEN)).remaining, 10.0)


async def many_at_once_get_the_limit_and_no_more(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Of thirty-two tasks on four stores, ten take a token."""
    stores = [make() for _ in range(4)]
    for algorithm in (  # the second is one that no script knows
        TEN,
        AllOf(AllOf(TEN)),
        PerResource(("requests", TEN), ("tokens", SlidingWindowLog("20/s"))),
    ):
        answers = await asyncio.gather(
            *(stores[place % 4].reserve(repr(algorithm), algorithm, [1]) for place in range(32))
        )
        assert sum(len(answer.instants) for answer in answers) == 10, algorithm


async def _spend_all(store: Store, algorithm: Algorithm[Any], clock: ManualClock) -> float:
    """Take tokens until the first rejection, set the clock back, and return the wait."""
    clock.advance(100.0)
    while (answer := await store.reserve(repr(algorithm), algorithm, [1])).instants:
        pass
    clock.advance(-20.0)
    again = await store.reserve(repr(algorithm), algorithm, [1])
    assert not again.instants, (algorithm, again)
    assert close(again.retry_after, answer.retry_after), (algorithm, again)
    return answer.retry_after


async def a_clock_that_steps_back_mints_nothing(make: Make, clock: ManualClock) -> None:
    """What was taken counts until as much time has passed as before."""
    store = make()
    for algorithm in _LIMITS:
        clock.advance(await _spend_all(store, algorithm, clock) / 2)
        assert not (await store.reserve(repr(algorithm), algorithm, [1])).instants, algorithm


async def a_clock_that_stepped_back_delays_nothing(make: Make, clock: ManualClock) -> None:
    """Time continues from where it was; not where each machine has its own: see `one_clock`."""
    store = make()
    for algorithm in _LIMITS:
        clock.advance(await _spend_all(store, algorithm, clock) + 1e-5)
        assert (await store.reserve(repr(algorithm), algorithm, [1])).delays == (0.0,), algorithm


async def any_text_is_its_own_key(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Blanks, braces, colons, non-ASCII text, a lone surrogate, and a megabyte."""
    keys: list[Key] = ["", " ", "a b", "a\r\nb", "a\0b", "{a}b", "}{", "{}", "%", "%25", "\udcff"]
    keys += ["a:b", ("a", "b"), ("a:b", ""), ("a", ":b"), ("", "a"), ("a", ""), "a", "A", "#", "é"]
    keys += ["x" * 1_000_000, "x" * 999_999 + "y", "x" * 999_999, ("x" * 199, "y"), "é" * 100]
    store = make()
    for key in keys:
        assert len((await store.reserve(key, SlidingWindowLog("10/h"), [1])).instants) == 1
    for key in keys:
        assert close((await store.peek(key, SlidingWindowLog("10/h"))).remaining, 9.0), key
        await store.clear(key)
        assert close((await store.peek(key, SlidingWindowLog("10/h"))).remaining, 10.0), key


async def another_algorithm_on_the_key_is_rejected(make: Make, clock: ManualClock) -> None:
    """Windows of another period too: their counts would mean something else."""
    clock.advance(-clock() % 60)
    bucket = TokenBucket("10/s")
    algorithms: list[Algorithm[Any]] = [bucket, Cooldown(10, 1), TEN, AllOf(TEN, TEN), OneByOne()]
    algorithms += [FixedWindow(rate) for rate in ("10/s", "10/min")]
    algorithms += [SlidingWindowCounter("10/s", buckets=buckets) for buckets in (2, 3)]
    algorithms += [PerResource(("requests", TEN), (name, bucket)) for name in ("tokens", "bytes")]
    store = make()
    for algorithm in algorithms:
        await store.reserve("key", algorithm, [1])
        peeked = await store.peek("key", algorithm)
        others = [other for other in algorithms if other is not algorithm]
        for other, method in zip(others, cycle(get_args(Method)), strict=False):
            await raises(ValueError, Step(method, [1], clock()).sent_to(store, "key", other))
        assert await store.peek("key", algorithm) == peeked, algorithm
        await store.clear("key")


CHECKS: list[Check] = [
    *(
        named(f"{name}-{type(algorithm).__name__}", partial(_follow, algorithm, steps))
        for algorithm, name, steps in DECISIONS
    ),
    it_decides_as_a_store_in_memory_does,
    bad_arguments_are_rejected,
    many_at_once_get_the_limit_and_no_more,
    a_clock_that_steps_back_mints_nothing,
    a_clock_that_stepped_back_delays_nothing,
    any_text_is_its_own_key,
    another_algorithm_on_the_key_is_rejected,
]
"""The checks: async functions of a store factory and its clock."""

# ---- slots ---------------------------------------------------------------------------------------

MakeSlots: TypeAlias = Callable[[], SlotStore]
SlotCheck: TypeAlias = Callable[[MakeSlots, ManualClock], Awaitable[None]]

_LEASE = 30.0
# An owner, the slots that it returns, and those that it wants.
_STEP = re.compile(r"([a-z]+)(?:-(\d))?(?:\+(\d))?")


class Owner:
    """A process that shares the slots, with a store of its own."""

    def __init__(self, make: MakeSlots, name: str, limit: int = 3, key: Key = "key") -> None:
        self.store: SlotStore = make()
        self.name: str = name
        self.limit: int = limit
        self.key: Key = key
        self.held: int = 0
        self.number: int = 0

    async def claim(self, wanted: int = 0, *, released: int = 0) -> Granted:
        """Return `released` slots, and ask for `wanted` more."""
        self.held -= released
        self.number += 1
        claim = Claim(self.name, self.limit, self.held, wanted, _LEASE, self.number)
        granted = await self.store.claim(self.key, claim)
        assert 0 <= granted.granted <= wanted
        self.held += granted.granted
        return granted


# Each step is a claim, by an owner with a store of its own: `ann-1+2=0` returns one slot, wants two
# more and gets none; `ann=0,3` wants none, and learns that the store gave three to others. `clock`
# advances the clock, `limit` is that of the owners who claim first behind it, and the answer to the
# last claim of the owner behind `lost` was lost.
GRANTS = {
    # What one gives back another gets.
    "limit_is_never_exceeded": "ann+2=2 bob+2=1 ann-1=0 bob+1=1 bob-2=0 ann+2=2",
    # Free slots are kept for the head of the queue; a slot that is wanted again is behind it.
    "first_waiter_is_served_first": """limit=2 ann+2=2 bob+1=0 cid+1=0 ann-1+1=0 cid+1=0 ann+1=0
        bob+1=1 ann-1+1=0 cid+1=1 bob-1=0 ann+1=1""",
    # With slots below an equal part of the limit, it goes before those that wait for more.
    "share_goes_first": "limit=4 ann+4=4 ann+3=0 bob+1=0 ann-1+3=0 bob+1=1 ann-1+3=1",
    # Also if it was no part of its share when it began to wait.
    "share_that_has_grown_goes_first": "limit=2 ann+2=2 bob+2=0 cid+1=0 ann-2=0 cid+1=1 bob+2=1",
    "owner_that_wants_less_leaves_the_end_of_the_queue": """limit=2 ann+2=2 bob+1=0 cid+1=0 bob+3=0
        bob+1=0 ann-1=0 cid+1=0 bob+1=1 bob+1=0 bob=0 ann-1=0 cid+1=1""",
    # Without a claim for a lease its slots are free, and its places in the queue are gone.
    "silent_owner_has_died": "ann+2=2 bob+2=1 clock=29 ann=0 cid+1=0 clock=1.01 cid+2=1",
    # No slot is granted until few enough are held.
    "owner_that_returns_keeps_what_it_holds": """ann+3=3 clock=31 bob+2=2 ann=0,3 ann=0
        cid+1=0 ann-2=0 cid+1=0 ann-1=0 cid+1=1""",
    "lowered_limit_holds_for_all": "ann+3=3 limit=1 bob+1=0 ann-2=0 bob+1=0 ann-1=0 bob+1=1",
    "lost_answer_is_corrected_by_the_next_claim": "ann+2=2 lost=ann ann+1=1 bob+3=2",
    "cleared_key_keeps_its_slots": "ann+3=3 bob+1=0 clear=1 ann-1=0 cid=0 bob+1=1",
    "a_clock_set_back_makes_no_lease_longer": "ann+3=3 clock=-1000 bob+1=0 clock=31 bob+1=1",
}


async def _follow_claims(steps: str, make: MakeSlots, clock: ManualClock) -> None:
    owners, limit = dict[str, Owner](), 3
    for step in steps.split():
        asked, _, wanted = step.partition("=")
        if asked == "clock":
            clock.advance(float(wanted))
        elif asked == "limit":
            limit = int(wanted)
        elif asked == "clear":
            await make().clear("key")
        elif asked == "lost":
            owners[wanted].held = 0
        else:
            (name, released, more) = _STEP.findall(asked)[0]
            owner = owners.setdefault(name, Owner(make, name, limit))
            granted = await owner.claim(int(more or 0), released=int(released or 0))
            slots, _, lost = wanted.partition(",")
            assert (granted.granted, granted.lost) == (int(slots), int(lost or 0)), (step, granted)


async def keys_are_apart(make: MakeSlots, clock: ManualClock) -> None:  # noqa: ARG001
    """Any text is a key, and is not the record of a rate of the same name."""
    for key in ("a", "b", ("a", "b"), "a b{c}\r\n\0é"):
        assert (await Owner(make, "ann", key=key).claim(5)).granted == 3


async def share_and_first_lease_to_expire_are_known(make: MakeSlots, clock: ManualClock) -> None:
    """Owners know how many slots they may use again, and when to ask again if they wait."""
    assert (await Owner(make, "ann").claim(3)).share == 3
    clock.advance(_LEASE - 1)
    assert 0 < (await Owner(make, "bob").claim(1)).retry_after <= 1


async def all_at_once_get_so_many(make: MakeSlots, clock: ManualClock) -> None:  # noqa: ARG001
    """In any interleaving."""
    owners = [Owner(make, f"owner{number}", limit=7) for number in range(12)]
    for _ in range(4):
        await asyncio.gather(*(owner.claim(1 - owner.held) for owner in owners))
        assert sum(owner.held for owner in owners) == 7


SLOT_CHECKS: list[SlotCheck] = [
    *(named(name, partial(_follow_claims, steps)) for name, steps in GRANTS.items()),
    keys_are_apart,
    share_and_first_lease_to_expire_are_known,
    all_at_once_get_so_many,
]
"""The checks of a store that shares slots, used as `CHECKS` are."""
