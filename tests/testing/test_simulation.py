import asyncio
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import aiothrottle.simulation
from aiothrottle import LimiterClosed, RateLimiter, ThrottleError, TokenBucket
from aiothrottle.algorithms import Unlimited
from aiothrottle.permit import Permit
from aiothrottle.retry import Retry
from aiothrottle.simulation import Outcome, Server, simulate, table
from aiothrottle.testing import greatest_count
from aiothrottle.testing.algorithms import ServerAlgorithm, SlidingWindowLog

WINDOW = Server("20/s", "sliding-window-log")
FIXED = Server("20/s", "fixed-window", phase=0.0)
BUCKET = Server("20/s", "token-bucket")


def window(rate: float = 20, guard: float = 0.0) -> Callable[[], RateLimiter]:
    return lambda: RateLimiter(rate, guard=guard)


def bucket(rate: float = 20, burst: float = 20) -> Callable[[], RateLimiter]:
    return lambda: RateLimiter(rate, algorithm=TokenBucket(burst=burst), guard=0.0)


# --- Cases with a known outcome ---


@pytest.mark.parametrize("latency", [0.001, 0.05, 0.1, 1 / 3])
def test_window_without_jitter_uses_the_whole_window(latency: float) -> None:
    outcome = simulate(window(), WINDOW, workers=200, latency=latency, jitter=0.0)
    assert outcome.sent == 20 * 60
    assert outcome.refused == 0
    assert outcome.utilisation == 1.0
    assert outcome.greatest_count == 20
    assert outcome.fairness == 1.0


def test_hour_of_a_slow_api_passes_at_once() -> None:
    outcome = simulate(lambda: RateLimiter("100/min"), "100/min", jitter=0.0, seconds=3600)
    assert (outcome.sent, outcome.refused, outcome.utilisation) == (6000, 0, 1.0)
    assert outcome.greatest_count == 100


@pytest.mark.parametrize("server", [WINDOW, FIXED, BUCKET], ids=lambda server: server.algorithm)
def test_client_of_half_the_rate_is_never_throttled(server: Server) -> None:
    outcome = simulate(window(rate=10), server)
    assert outcome.sent == 600
    assert outcome.refused == 0
    assert outcome.utilisation == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("server", [WINDOW, FIXED, BUCKET], ids=lambda server: server.algorithm)
def test_too_fast_client_is_throttled(server: Server) -> None:
    outcome = simulate(window(rate=40), server, jitter=0.0)
    assert outcome.refused > 0
    assert outcome.greatest_count > 20


def test_rolling_window_throttles_a_burst_around_an_edge() -> None:
    def twenty_twice(server: Server) -> Outcome:
        return simulate(lambda: RateLimiter("20/500ms"), server, jitter=0.0, seconds=0.9)

    around_the_edge = Server("20/s", "fixed-window", phase=0.75)
    within_a_window = Server("20/s", "fixed-window", phase=0.25)
    assert [
        (outcome.sent, outcome.refused)
        for outcome in map(twenty_twice, (around_the_edge, within_a_window, WINDOW))
    ] == [(40, 0), (40, 20), (40, 20)]


def test_token_bucket_holds_its_burst() -> None:
    assert simulate(bucket(burst=20), BUCKET, jitter=0.0, workers=100).refused == 0
    small = Server("20/s", "token-bucket", burst=5)
    assert simulate(bucket(burst=5), small, jitter=0.0, workers=100).refused == 0
    assert simulate(bucket(burst=20), small, jitter=0.0, workers=100).refused > 0


def test_bucket_client_uses_all_of_a_bucket_server() -> None:
    outcome = simulate(bucket(), BUCKET, jitter=0.0, workers=100)
    assert outcome.sent == 20 + 20 * 60 - 1
    assert outcome.utilisation == 1.0


def test_rate_below_one_is_a_longer_period() -> None:
    assert Server("0.5/s").period == 2.0
    outcome = simulate(lambda: RateLimiter("0.5/s"), "0.5/s", jitter=0.0, workers=3)
    assert (outcome.sent, outcome.refused, outcome.greatest_count) == (30, 0, 1)


# --- Jitter and guard ---


@pytest.mark.parametrize("jitter", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_guard_as_long_as_the_jitter_is_sufficient(jitter: float, seed: int) -> None:
    without = simulate(window(), WINDOW, jitter=jitter, seed=seed)
    assert without.refused > 0
    guarded = simulate(window(guard=jitter), WINDOW, jitter=jitter, seed=seed)
    assert guarded.refused == 0
    assert guarded.greatest_count <= 20
    assert guarded.utilisation >= math.floor(60 / (1 + jitter)) / 60


def test_travel_time_is_bounded_by_latency_and_jitter() -> None:
    outcome = simulate(window(), WINDOW, latency=0.05, jitter=0.02, seconds=0.9)
    instants = [arrival.at for arrival in outcome.arrivals]
    assert len(instants) == 20
    assert 0 <= min(instants) < 0.005
    assert 0.015 < max(instants) <= 0.02


def test_phase_of_fixed_window_depends_on_seed() -> None:
    def throttled(server: Server) -> set[int]:
        return {simulate(bucket(), server, seconds=3, seed=seed).refused for seed in range(8)}

    assert len(throttled(Server("20/s", "fixed-window"))) > 1
    assert len(throttled(Server("20/s", "fixed-window", phase=0.1))) == 1


# --- Several clients ---


def test_equal_clients_get_equal_shares() -> None:
    outcome = simulate(window(rate=10, guard=0.01), WINDOW, clients=2)
    assert outcome.fairness == pytest.approx(1.0, abs=1e-3)
    assert outcome.refused == 0
    assert {arrival.client for arrival in outcome.arrivals} == {0, 1}


def test_clients_with_the_whole_limit_each_are_throttled() -> None:
    outcome = simulate(window(guard=0.01), WINDOW, clients=4)
    assert outcome.refused_share > 0.5
    assert outcome.utilisation > 0.2


def test_fairness_of_one_dominant_client_is_one_nth() -> None:
    rates = iter([10, 1e-6, 1e-6, 1e-6])
    outcome = simulate(
        lambda: RateLimiter(next(rates), algorithm=TokenBucket(burst=1), guard=0.0),
        WINDOW,
        clients=4,
    )
    # 600 to the first, one to each of the others.
    assert outcome.fairness == 603**2 / (4 * (600**2 + 3))


# --- Throttled requests and the reaction of the client ---


def first_gap(server: Server) -> float:
    """The greatest gap between arrivals: how long the limiter was paused."""
    outcome = simulate(RateLimiter, server, workers=1, latency=0.01, jitter=0.0, seconds=10)
    assert outcome.refused
    instants = [arrival.at for arrival in outcome.arrivals]
    return max(b - a for a, b in itertools.pairwise(instants))


def test_retry_after_is_rounded_up_unless_exact() -> None:
    # The third comes 0.04 s after the first, 0.46 s too early.
    assert first_gap(Server("2/500ms", retry_after="seconds")) == pytest.approx(1.02)
    assert first_gap(Server("2/500ms", retry_after="exact")) == pytest.approx(0.48)


def test_without_retry_after_the_client_backs_off() -> None:
    once = Retry(backoff=4.0, attempts=2)
    server = Server("2/s", retry_after="none")
    outcome = simulate(RateLimiter, server, workers=1, seconds=200, retry=once)
    gaps = [b.at - a.at for a, b in itertools.pairwise(outcome.arrivals) if a.refused]
    assert 4.0 <= min(gaps) <= max(gaps) <= 4.0 + 0.15


def test_throttled_request_pauses_all_workers_of_its_client() -> None:
    outcome = simulate(lambda: RateLimiter("5/500ms"), "5/10s", seconds=9)
    # At 0.5 s five requests are throttled, and nothing arrives at 1 s.
    assert (outcome.sent, outcome.refused, outcome.given_up) == (10, 5, 0)


def test_request_throttled_too_often_gives_up() -> None:
    never = Retry(attempts=1)
    outcome = simulate(lambda: RateLimiter("5/500ms"), "5/10s", seconds=9, retry=never)
    assert (outcome.sent, outcome.refused, outcome.given_up) == (10, 5, 5)


def test_limiter_may_reject_locally() -> None:
    class CrowdedError(ThrottleError):
        retry_after = 0.25

    class Picky(RateLimiter):
        """Rejects every third request."""

        __slots__ = ("calls",)
        calls: Iterator[int]

        def throttle(self, *arguments: Any, **options: Any) -> Permit:  # noqa: ANN401
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
    away = simulate(client, "1000/s", demand=30)
    assert away.turned_away / (away.sent + away.turned_away) == pytest.approx(1 / 3, rel=0.01)


def test_slot_is_held_until_the_answer() -> None:
    outcome = simulate(
        lambda: RateLimiter(concurrency_limit=2), "1000/s", latency=0.25, jitter=0.0, seconds=10
    )
    assert outcome.sent == 40


# --- Demand ---


def test_random_demand_below_the_limit_is_met() -> None:
    outcome = simulate(window(guard=0.01), WINDOW, demand=15, seconds=100)
    assert outcome.refused == 0
    assert outcome.sent == pytest.approx(1500, rel=0.1)
    assert outcome.waits.p50 == 0.0
    assert 0.0 < outcome.waits.mean < 0.1
    assert outcome.waits.p99 > outcome.waits.mean


def test_random_demand_applies_to_each_client() -> None:
    outcome = simulate(window(rate=5), WINDOW, demand=4, clients=3, seconds=100)
    assert outcome.sent == pytest.approx(1200, rel=0.1)


def test_poisson_gaps_deviate_by_their_mean() -> None:
    outcome = simulate(RateLimiter, "1000/s", demand=10, jitter=0.0, seconds=300)
    gaps = [b.at - a.at for a, b in itertools.pairwise(outcome.arrivals)]
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.1)


def test_saturated_waits_are_as_long_as_the_queue() -> None:
    # Of 20 workers at 20/s each is served once a second, and a tenth of it is travelling (Little).
    outcome = simulate(bucket(burst=1), WINDOW, jitter=0.0)
    assert outcome.waits.p50 == pytest.approx(0.9)
    assert outcome.waits.p99 == pytest.approx(0.9)


# --- The outcome ---


def test_same_seed_gives_the_same_outcome() -> None:
    def run(seed: int) -> Outcome:
        return simulate(window(), Server(20, "fixed-window"), clients=2, demand=15, seed=seed)

    assert run(seed=1) == run(seed=1)
    assert run(seed=1) != run(seed=2)


def test_results_follow_from_the_arrivals() -> None:
    outcome = simulate(window(), WINDOW, clients=2)
    assert outcome.sent == len(outcome.arrivals)
    assert outcome.refused == sum(arrival.refused for arrival in outcome.arrivals)
    assert outcome.admitted + outcome.refused == outcome.sent
    assert outcome.refused_share == outcome.refused / outcome.sent
    instants = [arrival.at for arrival in outcome.arrivals]
    assert instants == sorted(instants)
    assert 0 <= instants[0] < instants[-1] < 60
    assert outcome.greatest_count == greatest_count(instants, 1 - 1e-9)
    admitted = [arrival.at for arrival in outcome.arrivals if not arrival.refused]
    assert greatest_count(admitted, 1 - 1e-9) <= 20


def test_too_long_retry_after_is_given_up() -> None:
    outcome = simulate(window(rate=1), "1/day", seconds=1000)
    # Each throttled request pauses the limiter, up to `Retry.max_retry_after`, 120 s.
    assert (outcome.admitted, outcome.refused, outcome.given_up) == (1, 9, 9)
    assert outcome.utilisation == 1.0


def test_outcome_without_requests_has_no_waits() -> None:
    outcome = simulate(window(), WINDOW, demand=1e-9)
    assert (outcome.sent, outcome.refused_share, outcome.utilisation) == (0, 0.0, 0.0)
    assert math.isnan(outcome.waits.mean)
    assert outcome.fairness == 1.0
    assert outcome.greatest_count == 0


def test_outcome_is_a_value_with_short_repr() -> None:
    outcome = simulate(window(), WINDOW, jitter=0.0)
    assert str(outcome) == (
        "1200 sent, 0.00% throttled, 100.0% used, waited 0.885 s (p99 0.9 s), "
        "at most 20 in a period, fairness 1.000"
    )
    assert len(repr(outcome)) < 300
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.sent = 0  # type: ignore[misc]


def test_table_has_a_line_for_each_outcome() -> None:
    outcome = simulate(window(), WINDOW, jitter=0.0)
    head, rule, first, second = table({"a": outcome, "quite long": outcome}).splitlines()
    assert len(head) == len(rule) == len(first) == len(second)
    assert first.startswith("| a          | 1200 |    0.00 % |")


# --- The server ---


def test_custom_algorithm() -> None:
    class OneInTwoSeconds:
        def __init__(self) -> None:
            self.now = 0.0

        def ready_at(self) -> float:
            return self.now

        def count(self, now: float) -> None:
            self.now = now + 2

    server = Server(1, OneInTwoSeconds)
    slow = simulate(window(0.5), server, jitter=0.0)
    assert (slow.admitted, slow.refused, slow.utilisation) == (30, 0, 1.0)
    assert simulate(window(1), server, jitter=0.0).refused > 0


def test_algorithm_without_a_limit_is_found() -> None:
    class Generous:
        def ready_at(self) -> float:
            return -math.inf

        def count(self, now: float) -> None:
            del now

    with pytest.raises(ValueError, match="limits nothing"):
        simulate(window(), Server(20, Generous), seconds=1)


def test_server_is_a_value() -> None:
    assert Server("20/s") == Server(20)
    assert hash(Server("20/s", "token-bucket", burst=5)) == hash(
        Server(20, "token-bucket", burst=5)
    )
    algorithm: ServerAlgorithm = Server(20).make_algorithm()
    assert isinstance(algorithm, SlidingWindowLog)
    assert "token-bucket" in repr(BUCKET)


# --- Bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "rolling"}, "algorithm must be one of 'sliding-window-log', "),
        ({"retry_after": "soon"}, "retry_after must be one of 'seconds', "),
        ({"burst": 3}, "burst belongs to algorithm='token-bucket'"),
        (
            {"algorithm": "token-bucket", "burst": 0.5},
            "burst must be a finite number of requests, 1 or more",
        ),
        ({"phase": 0.5}, "phase belongs to algorithm='fixed-window'"),
        (
            {"algorithm": "fixed-window", "phase": -0.5},
            "phase must be a finite number of seconds, 0 or more",
        ),
        ({"algorithm": "fixed-window", "phase": 1.0}, "phase is below the period"),
        ({"rate": "20/1e-9s"}, "the period of a server must be a .* of seconds, 0.000001 or more"),
    ],
)
def test_wrong_server_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Server(options.pop("rate", 20), **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"clients": 0}, ValueError, "clients must be a whole number, 1 or more"),
        ({"clients": 1.5}, TypeError, "clients must be a whole number"),
        ({"workers": True}, TypeError, "workers must be a whole number"),
        ({"demand": 0}, ValueError, "demand must be .* of requests per second, above 0, or None"),
        ({"latency": 0}, ValueError, "latency must be a finite number of seconds, above 0"),
        ({"jitter": -1}, ValueError, "jitter must be a finite number of seconds, 0 or more"),
        ({"seconds": math.inf}, ValueError, "seconds must be a finite number, above 0"),
        ({"seconds": "60"}, TypeError, "seconds must be a finite number"),
    ],
)
def test_wrong_simulation_options_are_rejected(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulate(window(), WINDOW, **options)


def test_client_must_make_limiters() -> None:
    with pytest.raises(TypeError, match="makes a RateLimiter when it is called"):
        simulate(cast("Any", RateLimiter(20)), WINDOW)
    with pytest.raises(TypeError, match="which is not a RateLimiter"):
        simulate(cast("Any", lambda: 20), WINDOW)


def test_error_of_the_limiter_is_raised_unchanged() -> None:
    class Broken(Unlimited):
        """It has divided by zero."""

        __slots__ = ()

        def delay(self, state: None, now: float, cost: float) -> float:
            raise ZeroDivisionError(state, now, cost)

    with pytest.raises(ZeroDivisionError):
        simulate(lambda: RateLimiter(algorithm=Broken()), WINDOW)
    closed = RateLimiter(20)
    asyncio.run(closed.aclose())
    with pytest.raises(LimiterClosed):
        simulate(lambda: closed, WINDOW)


async def test_running_loop_error_advises_a_thread() -> None:
    with pytest.raises(RuntimeError, match=r"`await asyncio\.to_thread\(simulate, \.\.\.\)`"):
        simulate(window(), WINDOW)
    outcome = await asyncio.to_thread(simulate, window(), WINDOW, jitter=0.0)
    assert outcome.utilisation == 1.0


def test_package_lists_its_public_names() -> None:
    assert all(hasattr(aiothrottle.simulation, name) for name in aiothrottle.simulation.__all__)
