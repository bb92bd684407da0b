"""LeakyBucket, FixedWindow, WaitUntil, Cooldown and AllOf: decisions and refunds."""

import asyncio
import math
from collections import deque
from dataclasses import FrozenInstanceError, fields
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiothrottle import RateLimiter
from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.rate import Rate
from aiothrottle.testing import VirtualTimeLoop
from tests.asking import admit, cost_of_reject, delay_behind, dump, refund

NEVER = math.inf

# ---- the scores, the reserved times, and the schedule ----------------------------------------


def test_score_of_a_cooldown() -> None:
    cooldown = Cooldown(3, 60)
    state = cooldown.start()
    for score in (20, 40, 60):
        assert admit(cooldown, state, 1000.0, 1)
        assert cooldown.reset_after(state, 1000.0) == pytest.approx(score)
    assert not admit(cooldown, state, 1000.0, 1)
    assert cooldown.reset_after(state, 1000.0) == pytest.approx(60)
    for later in (0, 7, 19.99):
        assert cooldown.delay(state, 1000.0 + later, 1) == pytest.approx(20 - later)
        assert not admit(cooldown, state, 1000.0 + later, 1)
    assert admit(cooldown, state, 1020.0, 1)


def test_ten_requests_at_one_instant_of_wait_until() -> None:
    algorithm = WaitUntil(interval=1, raise_after=5, limit=10)
    state, now = algorithm.start(), 1e6 + 0.1
    waits = list[float]()
    rejected = 0
    ahead = 0.0  # tokens of the queue, with those of rejected requests
    for _ in range(14):
        wait = algorithm.delay_behind(state, now, 1, ahead)
        waits.append(wait)
        if wait > algorithm.max_wait:
            rejected += 1
            ahead += algorithm.cost_of_reject(state, now, 1, ahead)
        elif wait:
            ahead += 1
        else:
            assert admit(algorithm, state, now, 1)
    assert waits == pytest.approx([*range(11), 10, 10, 10])
    assert rejected == 8


def test_rejections_move_reserved_time_up_to_limit() -> None:
    algorithm = WaitUntil(interval=1, raise_after=0, limit=2.5)
    state = algorithm.start()
    assert admit(algorithm, state, 0.0, 1)
    for reserved in (2, 2.5, 2.5):
        algorithm.take(state, 0.0, cost_of_reject(algorithm, state, 0.0, 1))
        assert algorithm.reset_after(state, 0.0) == reserved
    algorithm.take(state, 0.0, 1)
    assert algorithm.reset_after(state, 0.0) == 2.5
    algorithm.take(state, -5.0, 1)  # a clock that steps back does not lower the reserved time
    assert algorithm.reset_after(state, 0.0) == 2.5


class Classic:
    """Wait until, as originally written: each hit sleeps for the wait that it gets."""

    def __init__(self, algorithm: WaitUntil) -> None:
        self.algorithm, self.free_at = algorithm, -math.inf

    def hit(self, now: float) -> float:
        """Return the instant at which the hit starts, infinity if it is rejected."""
        wait = max(0.0, self.free_at - now)
        interval = self.algorithm.interval
        self.free_at = min(max(self.free_at + interval, now + interval), now + self.algorithm.limit)
        return now + wait if wait <= self.algorithm.raise_after else math.inf


class Queued:
    """The same with a queue: tokens are taken at the start, rejected ones stay in the queue."""

    def __init__(self, algorithm: WaitUntil) -> None:
        self.algorithm, self.state = algorithm, algorithm.start()
        self.queue: deque[tuple[int, float]] = deque()  # name (-1: rejected), cost
        self.starts: dict[int, float] = {}

    def serve(self, now: float, then: float) -> None:
        """Start all hits that are due from `now` until `then`."""
        while self.queue:
            name, cost = self.queue[0]
            now += self.algorithm.delay(self.state, now, cost)
            if now > then:
                return
            self.queue.popleft()
            self.algorithm.take(self.state, now, cost)
            if name >= 0:
                self.starts[name] = now

    def hit(self, name: int, now: float) -> None:
        ahead = sum(cost for _, cost in self.queue)
        wait = self.algorithm.delay_behind(self.state, now, 1, ahead)
        if wait <= self.algorithm.max_wait:
            self.queue.append((name, 1))
        else:
            self.starts[name] = math.inf
            rejected_cost = self.algorithm.cost_of_reject(self.state, now, 1, ahead)
            if rejected_cost:
                self.queue.append((-1, rejected_cost))


@settings(max_examples=200)
@given(
    waits=st.lists(st.integers(0, 6).map(lambda n: max(0, n - 3) * 0.25), max_size=60),
    raise_after=st.integers(0, 6),
    more=st.integers(0, 20).map(lambda n: n * 0.25),
)
def test_queue_starts_requests_when_the_original_would(
    waits: list[float], raise_after: int, more: float
) -> None:
    algorithm = WaitUntil(1, raise_after, raise_after + 1 + more)
    classic, queued = Classic(algorithm), Queued(algorithm)
    now, expected = 0.0, list[float]()
    for name, wait in enumerate(waits):
        queued.serve(now, now + wait)
        now += wait
        expected.append(classic.hit(now))
        queued.hit(name, now)
    queued.serve(now, math.inf)
    assert [queued.starts[name] for name in range(len(waits))] == expected


@pytest.mark.parametrize("rate", [20, 1000, 10_000])
@pytest.mark.parametrize("late", [0.0, 0.0004, 0.0019])
def test_leaky_bucket_keeps_its_schedule_with_late_timers(rate: int, late: float) -> None:
    algorithm = LeakyBucket(rate)
    state, now, granted = algorithm.start(), 0.0, 0
    while granted < rate:
        if delay := algorithm.delay(state, now, 1):
            now += delay + late * (granted % 7 / 6)
            continue
        algorithm.take(state, now, 1)
        granted += 1
        assert granted <= rate * (now + 0.002) + 1 + 1e-6
    assert now <= 1.0


# ---- behind others ---------------------------------------------------------------------------

BEHIND: list[tuple[Algorithm[Any], float, float, list[tuple[float, float]]]] = [
    # algorithm, tokens taken at 0.25, cost, (ahead, wait)
    (SlidingWindowLog("3/s"), 1, 1, [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (8, 3)]),
    (SlidingWindowLog("3/s"), 1, 4, [(1, NEVER)]),
    (TokenBucket("4/s", burst=2), 1, 1, [(0, 0), (1, 0.25), (2, 0.5), (9, 2.25)]),
    (TokenBucket("4/s", burst=2), 1, 3, [(1, NEVER)]),
    (LeakyBucket("4/s"), 1, 1, [(0, 0.248), (1, 0.498), (9, 2.498)]),
    (LeakyBucket("1000/s"), 0, 1, [(0, 0), (1, 0), (2, 0), (3, 0.001)]),
    (FixedWindow("3/s"), 1, 1, [(0, 0), (1, 0), (2, 0.75), (4, 0.75), (5, 1.75), (8, 2.75)]),
    (SlidingWindowCounter("3/s", buckets=2), 1, 1, [(1, 0), (2, 0.75), (3, 0.75), (5, 1.75)]),
    (Cooldown(3, 60), 1, 1, [(0, 0), (1, 0), (2, 20), (5, 80)]),
    (WaitUntil(1, 5, 10), 1, 1, [(0, 1), (1, 2), (9, 10)]),
    (AllOf(SlidingWindowLog("3/s"), LeakyBucket("4/s")), 1, 1, [(0, 0.248), (1, 0.498), (3, 1)]),
    (Unlimited(), 1, 1, [(99, 0)]),
]


@pytest.mark.parametrize(("algorithm", "taken", "cost", "answers"), BEHIND)
def test_wait_behind_others(
    algorithm: Algorithm[Any], taken: float, cost: float, answers: list[tuple[float, float]]
) -> None:
    state = algorithm.start()
    algorithm.take(state, 0.25, taken)
    for ahead, wait in answers:
        delay = delay_behind(algorithm, state, 0.25, cost, ahead)
        assert delay == pytest.approx(wait), ahead
        assert (delay == 0.0) == (wait == 0), ahead
        assert delay_behind(algorithm, state, 0.25, 0, ahead) == 0.0


@pytest.mark.parametrize("algorithm", [case[0] for case in BEHIND], ids=repr)
@settings(max_examples=40)
@given(
    start=st.sampled_from([0.0, 0.1, 0.9]),
    gaps=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.1]), max_size=8),
    ahead=st.integers(0, 12),
)
def test_predicted_wait_behind_others_is_exact(
    algorithm: Algorithm[Any], start: float, gaps: list[float], ahead: int
) -> None:
    state, now = algorithm.start(), start
    for gap in gaps:
        now += gap
        admit(algorithm, state, now, 1)
    predicted = now + delay_behind(algorithm, state, now, 1, ahead)
    for _ in range(ahead):
        now += algorithm.delay(state, now, 1)
        algorithm.take(state, now, 1)
    now += algorithm.delay(state, now, 1)
    if isinstance(algorithm, AllOf):
        assert predicted <= now + 1e-6
    else:
        assert predicted == pytest.approx(now, abs=1e-6)


# ---- refunds ---------------------------------------------------------------------------------

# algorithm, (instant, cost) taken, (now, cost, at) refunded, what the state is like afterwards
Refunds = list[tuple[Algorithm[Any], list[tuple[float, float]], tuple[float, float, float], Any]]
REFUNDS: Refunds = [
    (SlidingWindowLog("5/s"), [(0, 1), (0.5, 1)], (0.75, 1, 0.5), [(0, 1)]),
    (SlidingWindowLog("5/s"), [(0, 1), (0.5, 1)], (0.75, 1, 0), [(0.5, 1)]),
    (SlidingWindowLog("5/s"), [(0, 1), (0.5, 2)], (0.75, 0.5, 0.5), [(0, 1), (0.5, 1.5)]),
    (SlidingWindowLog("5/s"), [(0, 1), (0, 1)], (0.5, 0.25, 0), [(0, 1), (0, 0.75)]),
    # never more than was taken there
    (SlidingWindowLog("5/s"), [(0, 1), (0.5, 2)], (0.75, 99, 0.5), [(0, 1)]),
    (SlidingWindowLog("5/s"), [(0, 1), (0.5, 2)], (0.75, 1, 0.25), [(0, 1), (0.5, 2)]),
    # its window is over
    (SlidingWindowLog("5/s"), [(0, 1), (0.5, 2)], (1, 1, 0), [(0, 1), (0.5, 2)]),
    (TokenBucket("4/s"), [(0, 1), (0, 2)], (0, 2, 0), [(0, 1)]),
    (TokenBucket("4/s"), [(0, 1), (0, 2)], (0.25, 2, 0), [(0, 1)]),
    # some of it drained that would not have from an empty bucket
    (TokenBucket("4/s"), [(0, 2), (0.25, 2)], (0.5, 2, 0), [(0.25, 2)]),
    (TokenBucket("4/s"), [(0, 3), (0.25, 2)], (0.5, 3, 0), [(0.25, 2)]),
    (TokenBucket("4/s"), [(0, 3), (0.5, 2)], (0.5, 0.5, 0), [(0, 2.5), (0.5, 2)]),
    (TokenBucket("4/s"), [(0, 1), (3, 1)], (3, 1, 0), [(0, 1), (3, 1)]),
    (TokenBucket("4/s"), [(0, 1)], (0, 99, 0), [(-0.25, 1)]),
    (TokenBucket("4/s"), [(0, 1)], (9, 1, 0), [(0, 1)]),
    # reserved for later: each is refunded
    (TokenBucket("4/s"), [(0, 4), (0.25, 1)], (0, 1, 0.25), [(0, 4)]),
    (TokenBucket("4/s"), [(0, 4), (0.25, 1), (0.5, 1)], (0, 1, 0.25), [(0, 4), (0.5, 1)]),
    (LeakyBucket("4/s"), [(0, 1), (0.249, 1)], (0.249, 1, 0.249), [(0, 1)]),
    (LeakyBucket("4/s"), [(0, 1)], (0.125, 1, 0), [(0, 0.5)]),
    (LeakyBucket("4/s"), [(0, 1), (1, 1)], (1, 1, 0), [(0, 1), (1, 1)]),
    (FixedWindow("5/s"), [(0.25, 1), (0.5, 2)], (0.75, 1, 0.25), [(0.5, 2)]),
    (FixedWindow("5/s"), [(0.25, 1)], (0.75, 9, 0.25), [(0.25, 0)]),
    (FixedWindow("5/s"), [(0.25, 1), (1, 2)], (1, 1, 0.25), [(1, 2)]),
    (FixedWindow("5/s"), [(0.25, 1)], (1, 1, 1), [(0.25, 1)]),
    (SlidingWindowCounter("5/s", buckets=2), [(0.25, 1), (0.5, 2)], (0.75, 1, 0.25), [(0.5, 2)]),
    (SlidingWindowCounter("5/s", buckets=2), [(0.25, 1), (0.5, 2)], (0.75, 9, 0.5), [(0.25, 1)]),
    (SlidingWindowCounter("5/s", buckets=2), [(0.25, 1), (1, 2)], (1, 1, 0.25), [(1, 2)]),
    (SlidingWindowCounter("5/s", buckets=2), [(0.25, 1)], (1, 1, 1), [(0.25, 1)]),
    (Cooldown(3, 60), [(0, 2)], (0, 1, 0), [(0, 1)]),
    (Cooldown(3, 60), [(0, 2)], (30, 2, 0), [(0, 1.5)]),
    (WaitUntil(1, 5, 10), [(0, 3)], (0, 2, 0), [(0, 1)]),
    (AllOf(SlidingWindowLog("5/s"), TokenBucket("5/s")), [(0, 2)], (0, 1, 0), [(0, 1)]),
    (Unlimited(), [(0, 2)], (0, 1, 0), []),
]


@pytest.mark.parametrize(("algorithm", "taken", "back", "like"), REFUNDS)
def test_a_refund(
    algorithm: Algorithm[Any],
    taken: list[tuple[float, float]],
    back: tuple[float, float, float],
    like: list[tuple[float, float]],
) -> None:
    state, expected = algorithm.start(), algorithm.start()
    for instant, cost in taken:
        algorithm.take(state, instant, cost)
    for instant, cost in like:
        algorithm.take(expected, instant, cost)
    now, cost, at = back
    refund(algorithm, state, now, cost, at)
    most = min(algorithm.capacity, 9)
    for ask in (now, now + 0.2, now + 0.9):
        assert algorithm.remaining(state, ask) == pytest.approx(algorithm.remaining(expected, ask))
        assert algorithm.reset_after(state, ask) == pytest.approx(
            algorithm.reset_after(expected, ask)
        )
        for part in (0.1, 0.6, 1):
            assert algorithm.delay(state, ask, part * most) == pytest.approx(
                algorithm.delay(expected, ask, part * most)
            )


@pytest.mark.parametrize(
    "algorithm",
    [SlidingWindowLog("5/s"), TokenBucket("5/s"), FixedWindow("5/s"), SlidingWindowCounter("5/s")],
    ids=repr,
)
def test_refund_after_its_window_changes_nothing(algorithm: Algorithm[Any]) -> None:
    state = algorithm.start()
    algorithm.take(state, 0.5, 3)
    before = dump(algorithm, state)
    refund(algorithm, state, 1.75, 1, 0.5)
    assert dump(algorithm, state) == before


def test_a_bucket_is_never_emptier_than_empty() -> None:
    bucket, algorithm = TokenBucket("4/s"), Cooldown(3, 60)
    state, score = bucket.start(), algorithm.start()
    bucket.take(state, 7.0, 1)
    bucket.refund(state, 7.0, 99, 7.0)
    assert bucket.reset_after(state, 7.0) == 0.0
    algorithm.take(score, 7.0, 1)
    algorithm.refund(score, 7.0, 99, 7.0)
    assert algorithm.reset_after(score, 7.0) == 0.0


def test_refund_of_a_token_bucket_excludes_drained_tokens() -> None:
    bucket = TokenBucket("1/s", burst=5)
    state = bucket.start()
    bucket.take(state, 0.0, 1)
    bucket.take(state, 3.0, 1)
    bucket.refund(state, 3.0, 1, 0.0)  # with a full refund, five more would be granted at once
    assert sum(admit(bucket, state, 3.0, 1) for _ in range(9)) == 4


def test_refunded_window_is_fully_usable() -> None:
    window = SlidingWindowLog("300/s")
    state = window.start()
    for _ in range(300):
        assert admit(window, state, 0.0, 1)
    for _ in range(300):
        window.refund(state, 0.5, 1, 0.0)
    assert window.reset_after(state, 0.5) == 0.0
    assert sum(admit(window, state, 0.5, 1) for _ in range(301)) == 300


def test_refund_does_not_turn_the_clock_back() -> None:
    window = SlidingWindowLog("2/s")
    state = window.start()
    for instant in (0.0, 0.0, 1.0):
        assert admit(window, state, instant, 1)
    window.refund(state, 1.0, 1, 1.0)
    window.take(state, 0.5, 1)
    assert window.reset_after(state, 1.0) == 1.0


# ---- values and bad input --------------------------------------------------------------------


def test_algorithms_are_values() -> None:
    algorithms: list[Algorithm[Any]] = [
        LeakyBucket(10),
        FixedWindow(10),
        SlidingWindowCounter(10, buckets=10),
        SlidingWindowCounter(10, buckets=5),
        WaitUntil(1, 5, 10),
        Cooldown(3, 60),
        AllOf(SlidingWindowLog(10), TokenBucket(10)),
        AllOf(SlidingWindowLog(10)),
    ]
    assert len(set(algorithms)) == len(algorithms)
    for algorithm in algorithms:
        twin = eval(repr(algorithm), globals() | {"Rate": Rate})
        assert twin == algorithm
        assert hash(twin) == hash(algorithm)
        with pytest.raises(FrozenInstanceError):
            setattr(algorithm, fields(cast("Any", algorithm))[0].name, 3)


@pytest.mark.parametrize("kind", [LeakyBucket, FixedWindow, SlidingWindowCounter])
def test_invalid_rates_raise(kind: type[Any]) -> None:
    rate: Any
    for rate in (0, -1, math.nan, "fast"):
        with pytest.raises(ValueError, match="rate"):
            kind(rate)
    for rate in (True, [1]):
        with pytest.raises(TypeError, match="rate"):
            kind(rate)


def test_invalid_numbers_raise() -> None:
    wrong: Any
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="buckets"):
            SlidingWindowCounter(1, buckets=wrong)
    for wrong in (True, 1.5, "3"):
        with pytest.raises(TypeError, match="buckets"):
            SlidingWindowCounter(1, buckets=wrong)
    for n, period in ((0, 60), (0.5, 60), (3, 0), (3, math.inf), (math.nan, 60)):
        with pytest.raises(ValueError, match=r"period|limit|Cooldown"):
            Cooldown(n, period)
    for wrong in ("3", None, True):
        with pytest.raises(TypeError, match="number"):
            Cooldown(wrong, 60)
        with pytest.raises(TypeError, match="interval"):
            WaitUntil(wrong, 5, 10)
    for numbers in ((0, 5, 10), (-1, 5, 10), (1, -1, 10), (1, 5, math.nan), (1, math.inf, 10)):
        with pytest.raises(ValueError, match=r"interval|raise_after|limit"):
            WaitUntil(*numbers)
    for numbers in ((1, 5, 4), (10, 5, 9)):
        with pytest.raises(ValueError, match="is below"):
            WaitUntil(*numbers)


def test_all_of_rejects_nothing_and_non_algorithms() -> None:
    with pytest.raises(ValueError, match="one algorithm or more"):
        AllOf()
    wrong: Any
    for wrong in ("10/s", SlidingWindowLog):
        with pytest.raises(TypeError, match=r"such as (TokenBucket|SlidingWindowLog)"):
            AllOf(wrong)


def test_a_sliding_window_without_a_rate_cannot_start() -> None:
    assert SlidingWindowCounter(buckets=20).buckets == 20
    with pytest.raises(ValueError, match="no rate"):
        SlidingWindowCounter(buckets=20).start()


def test_rejected_request_counts_up_to_the_limit() -> None:
    algorithm = WaitUntil(0.5, raise_after=2, limit=4)
    state = algorithm.start()
    algorithm.take(state, 0.0, 3)
    # The reserved time is 1.5 s ahead, and four wait: two seconds more.
    assert cost_of_reject(algorithm, state, 0.0, 1, ahead=4) == 1
    assert cost_of_reject(algorithm, state, 0.0, 2, ahead=4) == 1
    assert cost_of_reject(algorithm, state, 0.0, 20) == 5
    assert cost_of_reject(algorithm, state, 0.0, 1, ahead=9) == 0


def test_all_of_combines_the_waits_of_its_parts() -> None:
    both = AllOf(SlidingWindowLog("10/s"), WaitUntil(1, 5, 10))
    assert both.max_wait == pytest.approx(5)
    assert cost_of_reject(both, both.start(), 0.0, 2) == 2
    assert cost_of_reject(both, both.start(), 0.0, 20) == 10  # nobody is ahead
    assert AllOf(SlidingWindowLog("10/s")).max_wait == math.inf
    assert cost_of_reject(AllOf(SlidingWindowLog("10/s")), both.start()[:1], 0.0, 2) == 0.0


def test_all_of_delay_holds_where_admission_ends() -> None:
    class Night(Unlimited):
        """Open in even quarters of a second."""

        def delay_behind(self, state: None, now: float, cost: float, ahead: float) -> float:
            del state, cost, ahead
            return 0.0 if now % 0.5 < 0.25 else 0.5 - now % 0.5

        def delay(self, state: None, now: float, cost: float) -> float:
            return self.delay_behind(state, now, cost, 0.0)

    algorithm = AllOf(Night(), SlidingWindowLog("1/375ms"))
    state = algorithm.start()
    assert admit(algorithm, state, 0.0, 1)
    assert algorithm.delay(state, 0.0, 1) == 0.5


class LateLoop(VirtualTimeLoop):
    """Its timers are late, like real ones: by a rounding to milliseconds, and some more."""

    def __init__(self, late: float) -> None:
        self.late = late
        super().__init__()

    def _jump(self) -> bool:
        jumped = super()._jump()
        if jumped:
            self._set_time(self.time() + self.late)
        return jumped


@pytest.mark.parametrize("rate", [100, 1_000, 10_000])
@pytest.mark.parametrize("late", [0.0, 0.0011, 0.0014])
def test_leaky_bucket_queue_loses_nothing_to_late_timers(rate: int, late: float) -> None:
    async def begin(limiter: RateLimiter, begun: list[float]) -> None:
        async with limiter.throttle():
            begun.append(asyncio.get_running_loop().time())

    async def start_all() -> list[float]:
        limiter, begun = RateLimiter(rate, algorithm=LeakyBucket), list[float]()
        await asyncio.gather(*(begin(limiter, begun) for _ in range(rate)))
        return begun

    with asyncio.Runner(loop_factory=lambda: LateLoop(late)) as runner:
        begun = runner.run(start_all())
    assert begun[-1] <= (rate - 1) / rate + 1e-6
