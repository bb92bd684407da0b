"""`simulate`: cases with a known outcome, and what its results mean."""

import asyncio
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from aiothrottle import LimiterClosed, Permit, RateLimiter, Retry, ThrottleError, TokenBucket
from aiothrottle.simulation import Outcome, Server, simulate, table

WINDOW = Server("20/s", "sliding-window-log")
BUCKET = Server("20/s", "token-bucket")


def window(rate: float | str = 20, guard: float = 0.0) -> Callable[[], RateLimiter]:
    return lambda: RateLimiter(rate, guard=guard)


def bucket(rate: float = 20, burst: float = 20) -> Callable[[], RateLimiter]:
    return lambda: RateLimiter(rate, algorithm=TokenBucket(burst=burst), guard=0.0)


def unlimited() -> RateLimiter:
    return RateLimiter(learn_rate=False)


def gaps(outcome: Outcome) -> list[float]:
    return [b.at - a.at for a, b in itertools.pairwise(outcome.arrivals)]


def test_windows_and_buckets_throttle_what_exceeds_them() -> None:
    around_the_edge = Server("20/s", "fixed-window", phase=0.75)
    within_a_window = Server("20/s", "fixed-window", phase=0.25)
    for server, throttled in ((around_the_edge, 0), (within_a_window, 20), (WINDOW, 20)):
        outcome = simulate(
            lambda: RateLimiter("20/500ms", guard=0.0), server, jitter=0.0, seconds=0.9
        )
        assert (outcome.sent, outcome.throttled) == (40, throttled), server
    small = Server("20/s", "token-bucket", burst=5)
    for burst, server, throttles in ((20, BUCKET, False), (5, small, False), (20, small, True)):
        outcome = simulate(bucket(burst=burst), server, jitter=0.0, workers=100)
        assert (outcome.throttled > 0) is throttles, (burst, server)


def test_rate_below_one_is_a_longer_period() -> None:
    assert Server("0.5/s").period == 2.0
    outcome = simulate(lambda: RateLimiter("0.5/s"), "0.5/s", jitter=0.0, workers=3)
    assert (outcome.sent, outcome.throttled, outcome.greatest_count) == (30, 0, 1)


def test_custom_algorithm() -> None:
    class OneInTwoSeconds:
        now = 0.0

        def ready_at(self) -> float:
            return self.now

        def count(self, now: float) -> None:
            self.now = now + 2

    class Generous(OneInTwoSeconds):
        def count(self, now: float) -> None:
            del now

    class Closed(OneInTwoSeconds):
        now = 1e6

    server = Server(1, OneInTwoSeconds)
    slow = simulate(window(0.5), server, jitter=0.0)
    assert (slow.admitted, slow.throttled, slow.utilisation) == (30, 0, 1.0)
    assert simulate(window(1), server, jitter=0.0).throttled > 0
    with pytest.raises(ValueError, match="limits nothing"):
        simulate(window(), Server(20, Generous), seconds=1)
    closed = simulate(window(), Server(20, Closed), seconds=1)
    assert closed.throttled == closed.sent > 0
    assert closed.utilisation == 1.0


@pytest.mark.parametrize("jitter", [0.001, 0.1])
@pytest.mark.parametrize("seed", range(2))
def test_guard_as_long_as_the_jitter_is_sufficient(jitter: float, seed: int) -> None:
    without = simulate(window(), WINDOW, jitter=jitter, seed=seed)
    assert without.throttled > 0
    guarded = simulate(window(guard=jitter), WINDOW, jitter=jitter, seed=seed)
    assert guarded.throttled == 0
    assert guarded.greatest_count <= 20
    assert guarded.utilisation >= math.floor(60 / (1 + jitter)) / 60


def test_fairness_is_one_among_equals_and_one_nth_under_one() -> None:
    outcome = simulate(window(rate=10, guard=0.01), WINDOW, clients=2)
    assert outcome.fairness == pytest.approx(1.0, abs=1e-3)
    assert outcome.throttled == 0
    assert {arrival.client for arrival in outcome.arrivals} == {0, 1}
    rates = iter([10, 1e-6, 1e-6, 1e-6])
    one = TokenBucket(burst=1)
    outcome = simulate(
        lambda: RateLimiter(next(rates), algorithm=one, guard=0.0), WINDOW, clients=4
    )
    # 600 to the first, one to each of the others.
    assert outcome.fairness == 603**2 / (4 * (600**2 + 3))


@pytest.mark.parametrize(("retry_after", "pause"), [("seconds", 1.02), ("exact", 0.48)])
def test_retry_after_is_rounded_up_unless_exact(retry_after: Any, pause: float) -> None:
    # The third comes 0.04 s after the first, 0.46 s too early.
    server = Server("2/500ms", retry_after=retry_after)
    outcome = simulate(unlimited, server, workers=1, latency=0.01, jitter=0.0, seconds=10)
    assert outcome.throttled
    assert max(gaps(outcome)) == pytest.approx(pause)


def test_throttled_client_pauses_backs_off_or_gives_up() -> None:
    once = Retry(backoff=4.0, attempts=2)
    server = Server("2/s", retry_after="none")
    outcome = simulate(unlimited, server, workers=1, seconds=200, retry=once)
    after = [b.at - a.at for a, b in itertools.pairwise(outcome.arrivals) if a.throttled]
    assert 4.0 <= min(after) <= max(after) <= 4.0 + 0.15
    # At 0.5 s five requests are throttled, and nothing arrives at 1 s.
    for retry, given_up in ((Retry(), 0), (Retry(attempts=1), 5)):
        outcome = simulate(window("5/500ms"), "5/10s", seconds=9, retry=retry)
        assert (outcome.sent, outcome.throttled, outcome.given_up) == (10, 5, given_up)
    outcome = simulate(window(rate=1), "1/day", seconds=10_000)
    # Each throttled request pauses the limiter, up to `Retry.max_pause`, an hour.
    assert (outcome.admitted, outcome.throttled, outcome.given_up) == (1, 3, 3)
    assert outcome.utilisation == 1.0


def test_limiter_may_reject_locally() -> None:
    class CrowdedError(ThrottleError):
        retry_after = 0.25

    class Picky(RateLimiter):
        __slots__ = ("calls",)
        calls: Iterator[int]

        def throttle(self, *arguments: Any, **options: Any) -> Permit:
            if next(self.calls) % 3 == 0:
                raise CrowdedError
            return super().throttle(*arguments, **options)

    def client() -> RateLimiter:
        limiter = Picky(concurrency_limit=20)
        limiter.calls = itertools.count()
        return limiter

    # The one worker is rejected for 0.25 s, sends two that take 0.125 s each, and so on.
    outcome = simulate(client, WINDOW, workers=1, latency=0.0625, jitter=0.0, seconds=10 - 0.0625)
    assert (outcome.sent, outcome.turned_away) == (40, 20)


def test_random_demand_is_poisson_and_met() -> None:
    outcome = simulate(window(guard=0.01), WINDOW, demand=15, seconds=100)
    assert outcome.throttled == 0
    assert outcome.sent == pytest.approx(1500, rel=0.1)
    assert outcome.waits.p50 == 0.0
    assert 0.0 < outcome.waits.mean < 0.1
    assert outcome.waits.p99 > outcome.waits.mean
    between = gaps(simulate(RateLimiter, "1000/s", demand=10, jitter=0.0, seconds=300))
    assert statistics.mean(between) == pytest.approx(0.1, rel=0.1)
    assert statistics.stdev(between) == pytest.approx(0.1, rel=0.1)


def test_slots_and_queue_give_the_waits_of_littles_law() -> None:
    # Of 20 workers at 20/s each is served once a second, and a tenth of it is travelling.
    outcome = simulate(bucket(burst=1), WINDOW, jitter=0.0)
    assert (outcome.waits.p50, outcome.waits.p99) == pytest.approx((0.9, 0.9))
    two = partial(RateLimiter, concurrency_limit=2, learn_rate=False)
    slots = simulate(two, "1000/s", latency=0.25, jitter=0.0, seconds=10)
    assert slots.sent == 40, "a slot is held until the answer"


def test_limiter_learns_from_the_answers_as_that_of_a_session() -> None:
    learning = simulate(lambda: RateLimiter(concurrency_limit=8), WINDOW)
    without = simulate(lambda: RateLimiter(concurrency_limit=8, learn_rate=False), WINDOW)
    assert learning.throttled_share < 0.05
    assert without.throttled_share > 0.2


def test_seed_decides_phase_and_outcome() -> None:
    def run(seed: int) -> Outcome:
        return simulate(window(), Server(20, "fixed-window"), clients=2, demand=15, seed=seed)

    assert run(seed=1) == run(seed=1)
    assert run(seed=1) != run(seed=2)

    def throttled(server: Server) -> set[int]:
        return {simulate(bucket(), server, seconds=3, seed=seed).throttled for seed in range(8)}

    assert len(throttled(Server("20/s", "fixed-window"))) > 1
    assert len(throttled(Server("20/s", "fixed-window", phase=0.1))) == 1


def test_change_is_a_server_or_just_its_rate() -> None:
    first, second = (
        simulate(window(), WINDOW, changes={5.0: new}) for new in ("5/s", Server("5/s"))
    )
    assert first == second
    assert first.throttled > 0


def test_outcome_is_a_value_also_without_requests() -> None:
    outcome = simulate(window(), WINDOW, jitter=0.0)
    assert str(outcome) == (
        "1200 sent, 0.00% throttled, 100.0% used, waited 0.885 s (p99 0.9 s), "
        "at most 20 in a period, fairness 1.000"
    )
    assert len(repr(outcome)) < 300
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.sent = 0  # type: ignore[misc]
    head, rule, first, second = table({"a": outcome, "quite long": outcome}).splitlines()
    assert len(head) == len(rule) == len(first) == len(second)
    assert first.startswith("| a          | 1200 |    0.00 % |")
    outcome = simulate(window(), WINDOW, demand=1e-9)
    assert (outcome.sent, outcome.throttled_share, outcome.utilisation) == (0, 0.0, 0.0)
    assert (outcome.greatest_count, outcome.fairness) == (0, 1.0)
    assert math.isnan(outcome.waits.mean)


def simulated(**options: Any) -> Outcome:
    return simulate(options.pop("client", window()), WINDOW, **options)


@pytest.mark.parametrize(
    ("call", "options", "error", "message"),
    [
        (Server, {"algorithm": "rolling"}, ValueError, "algorithm must be one of 'sliding-win"),
        (Server, {"retry_after": "soon"}, ValueError, "retry_after must be one of 'seconds', "),
        (Server, {"algorithm": "token-bucket", "burst": 0.5}, ValueError, "burst must .* 1 or m"),
        (Server, {"algorithm": "fixed-window", "phase": -0.5}, ValueError, "phase must .* 0 or"),
        (Server, {"rate": "20/1e-9s"}, ValueError, "the period of a server must be .* 0.000001"),
        (simulated, {"clients": 0}, ValueError, "clients must be a whole number, 1 or more"),
        (simulated, {"clients": 1.5}, TypeError, "clients must be a whole number"),
        (simulated, {"workers": True}, TypeError, "workers must be a whole number"),
        (simulated, {"demand": 0}, ValueError, "demand must be .* per second, above 0, or None"),
        (simulated, {"latency": 0}, ValueError, "latency must be .* of seconds, above 0"),
        (simulated, {"jitter": -1}, ValueError, "jitter must be .* of seconds, 0 or more"),
        (simulated, {"seconds": math.inf}, ValueError, "seconds must be a finite number, above 0"),
        (simulated, {"seconds": "60"}, TypeError, "seconds must be a finite number"),
        (simulated, {"retry": None}, TypeError, "retry must be a Retry, such as .* got None"),
        (simulated, {"client": RateLimiter(20)}, TypeError, "makes a RateLimiter when it is cal"),
        (simulated, {"client": lambda: 20}, TypeError, "which is not a RateLimiter"),
    ],
)
def test_wrong_options_are_rejected(
    call: Callable[..., object], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"rate": 20, **options} if call is Server else options
    with pytest.raises(error, match=message):
        call(**given)


def test_error_of_the_limiter_is_raised_unchanged() -> None:
    closed = RateLimiter(20)
    asyncio.run(closed.aclose())
    with pytest.raises(LimiterClosed):
        simulate(lambda: closed, WINDOW)


async def test_running_loop_error_advises_a_thread() -> None:
    with pytest.raises(RuntimeError, match=r"`await asyncio\.to_thread\(simulate, \.\.\.\)`"):
        simulate(window(), WINDOW)
    outcome = await asyncio.to_thread(simulate, window(), WINDOW, jitter=0.0)
    assert outcome.utilisation == 1.0
