"""A limiter without a rate learns one: in front of servers, in virtual time, and the evidence."""

import asyncio
import itertools
import logging
import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from aiothrottle import AdaptiveRate, KeyedRateLimiter, RateLimiter
from aiothrottle.adaptive.evidence import Evidence, LearnedSlots
from aiothrottle.adaptive.rate import RateState
from aiothrottle.httpx import ThrottledTransport
from tests.adaptive.session_in_time import run
from tests.support.effort import seeds
from tests.support.observing import adaptations, observed
from tests.support.server_limits import (
    OF_TWENTY,
    Admits,
    envoy,
    nginx,
    rolling_window,
    sliding_counter,
    token_bucket,
    weighted_counter,
)
from tests.support.virtually import counts, virtual


def without_rate() -> RateLimiter:
    return RateLimiter(concurrency_limit=8)


@pytest.mark.parametrize("server", OF_TWENTY)
def test_unknown_limit_is_used_and_hardly_exceeded(server: str) -> None:
    for seed in seeds(1):
        record = run(OF_TWENTY[server](), 60.0, seed=seed, limiter=without_rate())
        assert record.part_throttled(0.0, 60.0) <= 0.03
        assert record.part_throttled(10.0, 60.0) <= 0.0125
        # Even spacing leaves no room for the jitter of the network.
        least = 0.82 if server == "nginx without burst" else 0.9
        assert record.used(10.0, 60.0, 20.0) >= least


RATED: dict[str, Callable[[int], Admits]] = {
    "nginx": lambda rate: nginx(rate, 5),
    "Envoy": lambda rate: envoy(5, 5 / rate),
    "a rolling window": rolling_window,
    "HAProxy": sliding_counter,
    "a bucket": lambda rate: token_bucket(rate, 10),
}


@pytest.mark.parametrize(("before", "after"), [(10, 20), (20, 10)])
@pytest.mark.parametrize("make", RATED.values(), ids=RATED)
def test_limit_that_doubles_or_halves_is_followed(
    make: Callable[[int], Admits], before: int, after: int
) -> None:
    first, then, changes_at = make(before), make(after), 1000.3 + 30.0

    def admits(now: float) -> bool:
        return (first if now < changes_at else then)(now)

    record = run(admits, 80.0, limiter=without_rate())
    assert record.used(45.0, 75.0, after) >= 0.87
    assert record.part_throttled(30.0 if after > before else 35.0, 80.0) <= 0.015


@pytest.mark.parametrize(
    ("server", "rate", "throttled"),
    [
        (rolling_window(10, 600.0), 1 / 60, 0.06),
        (rolling_window(60, 3600.0), 1 / 60, 0.12),
        (nginx(1 / 13, 0), 1 / 13, 0.02),
    ],
    ids=["10 in 10 min", "60 in an hour", "one in 13 s"],
)
def test_limit_of_many_minutes_is_found(server: Admits, rate: float, throttled: float) -> None:
    """Though the server says each time that a second is enough."""
    record = run(server, 4 * 3600.0, limiter=without_rate(), retry_after=1)
    assert record.lost <= 24
    assert record.part_throttled(2 * 3600.0, 4 * 3600.0) <= throttled
    assert record.used(2 * 3600.0, 4 * 3600.0, rate) >= 0.9


@pytest.mark.parametrize("retry_after", [None, 1, 5])
@pytest.mark.parametrize(
    ("make", "takes"),
    [
        (lambda: token_bucket(1.0, 10.0), 2.0),
        (lambda: token_bucket(1.0, 10.0), 20.0),
        (lambda: rolling_window(60, 60.0), 8.0),
        (lambda: rolling_window(60, 60.0), 20.0),
    ],
    ids=["bucket, 2 s", "bucket, 20 s", "window, 8 s", "window, 20 s"],
)
def test_limit_of_a_slow_server_is_found(
    make: Callable[[], Admits], takes: float, retry_after: int | None
) -> None:
    """A language model answers after seconds, and throttles at once."""
    limiter = RateLimiter(concurrency_limit=32)
    record = run(make(), 900.0, workers=64, limiter=limiter, retry_after=retry_after, takes=takes)
    assert record.part_throttled(0.0, 300.0) <= 0.13
    assert record.part_throttled(300.0, 900.0) <= 0.03
    assert record.used(300.0, 900.0, 1.0) >= 0.75
    assert record.lost == 0


@pytest.mark.parametrize("concurrency_limit", [128, None])
def test_many_slots_do_not_open_at_once_at_a_slow_server(concurrency_limit: int | None) -> None:
    limiter = RateLimiter(concurrency_limit=concurrency_limit)
    record = run(token_bucket(5.0, 20.0), 400.0, workers=500, limiter=limiter, takes=15.0)
    assert record.part_throttled(0.0, 200.0) <= 0.15
    assert record.part_throttled(200.0, 400.0) <= 0.03


@pytest.mark.parametrize("retry_after", [None, 1, 30])
def test_rate_is_used_again_soon_after_an_outage(retry_after: int | None) -> None:
    """An hour without an admitted request tells nothing about the rate after it."""
    server = rolling_window(4)

    def admits(at: float) -> bool:
        return not 1300.0 <= at < 4900.0 and server(at)

    record = run(admits, 4800.0, limiter=without_rate(), retry_after=retry_after)
    assert record.used(4400.0, 4800.0, 4.0) >= 0.7
    assert sum(299.0 <= at < 3900.0 for at in record.throttled) <= 50
    assert record.lost == 0


@pytest.mark.parametrize(
    ("server", "used"),
    [("Envoy 5", 0.8), ("HAProxy", 0.9), ("a rolling window", 0.9), ("nginx without burst", 0.8)],
)
def test_pauses_of_whole_seconds_cost_little(server: str, used: float) -> None:
    for seed in seeds(2):
        record = run(OF_TWENTY[server](), 60.0, seed=seed, limiter=without_rate(), retry_after=1)
        assert record.part_throttled(10.0, 60.0) <= 0.005
        assert record.used(10.0, 60.0, 20.0) >= used


@pytest.mark.parametrize(
    ("server", "rate", "retry_after"),
    [(rolling_window(60, 60.0), 1.0, 5), (weighted_counter(45, 60.0), 0.75, 30)],
)
def test_limit_of_a_minute_is_found_in_three(server: Admits, rate: float, retry_after: int) -> None:
    record = run(server, 600.0, limiter=without_rate(), retry_after=retry_after)
    assert record.part_throttled(180.0, 600.0) <= 0.025
    assert record.used(180.0, 600.0, rate) >= 0.8


@pytest.mark.parametrize("retry_after", [None, 1])
def test_limit_of_ten_seconds_is_found_without_a_wild_search(retry_after: int | None) -> None:
    record = run(rolling_window(20, 10.0), 240.0, limiter=without_rate(), retry_after=retry_after)
    assert record.part_throttled(60.0, 240.0) <= 0.03
    assert record.used(120.0, 240.0, 2.0) >= 0.85


@pytest.mark.parametrize("rate_limit", [AdaptiveRate("10/s", "0.1/s", "200/s"), None])
def test_window_of_a_minute_is_found_after_a_short_one(rate_limit: AdaptiveRate | None) -> None:
    """The server does not say for how long it is closed: twice in a row for most of a minute."""
    second, minute = rolling_window(10), rolling_window(100, 60.0)
    limiter = RateLimiter(rate_limit, concurrency_limit=8)
    record = run(lambda at: second(at) and minute(at), 600.0, limiter=limiter)
    assert record.part_throttled(0.0, 300.0) <= 0.08
    assert record.part_throttled(300.0, 600.0) <= 0.035
    assert record.used(300.0, 600.0, 100 / 60) >= 0.9
    assert record.lost == 0


@pytest.mark.parametrize(("retry_after", "used"), [(1, 0.4), (None, 0.7)])
def test_search_from_one_request_a_second_is_quick(retry_after: int | None, used: float) -> None:
    for seed in seeds(2):
        record = run(nginx(20, 0), 10.0, seed=seed, limiter=without_rate(), retry_after=retry_after)
        assert record.used(5.0, 10.0, 20.0) >= used


@pytest.mark.parametrize(
    ("make", "retry_after", "most", "used"),
    [
        (lambda: nginx(1.0, 0), None, 8, 0.85),
        (lambda: nginx(1.0, 0), 1, 7, 0.8),
        (lambda: nginx(1 / 3, 3), None, 18, 1.0),
        (lambda: rolling_window(2, 5.0), 5, 9, 0.55),
        (lambda: rolling_window(2), None, 13, 0.85),
        (lambda: rolling_window(3), None, 11, 0.85),
        (lambda: token_bucket(0.5, 10.0), None, 20, 1.0),
    ],
    ids=["60r/m", "60r/m, 1 s", "20r/m burst=3", "2 per 5 s, 5 s", "2/s", "3/s", "0.5/s burst 10"],
)
def test_low_limit_throttles_few_requests_of_the_first_minute(
    make: Callable[[], Admits], retry_after: int | None, most: int, used: float
) -> None:
    for seed in seeds(3):
        record = run(make(), 60.0, seed=seed, limiter=without_rate(), retry_after=retry_after)
        assert len(record.throttled) <= most
        assert len(record.admitted) >= used * len(ideal(make()))


def ideal(admits: Admits) -> list[float]:
    """Return when a server admits requests of a minute that come all the time."""
    return [n / 100 for n in range(6000) if admits(n / 100)]


@virtual
async def test_near_the_limit_requests_go_one_at_a_time() -> None:
    limiter = without_rate()
    ThrottledTransport(limiter)  # which reports the outcomes
    random.seed(1)
    in_flight: list[int] = []
    left = 5

    async def send() -> None:
        nonlocal left
        async with limiter.throttle() as permit:
            in_flight.append(limiter.statistics().in_flight)
            await asyncio.sleep(0.01)
            if left > 0:
                left -= 1
                permit.report_success()
            else:
                permit.report_throttled(1.0)

    await asyncio.gather(*(send() for _ in range(8)))
    assert max(in_flight) == 4
    in_flight.clear()
    left = 40
    await asyncio.gather(*(send() for _ in range(20)))
    assert in_flight[:6] == [1] * 6
    assert max(in_flight) == 8


def test_nothing_is_learned_where_no_request_is_throttled() -> None:
    limiter = without_rate()
    changes = observed(limiter)
    plain = RateLimiter(concurrency_limit=8, learn_rate=False)
    record, expected = (run(token_bucket(1e6, 1e6), 1.0, limiter=it) for it in (limiter, plain))
    opening = 17  # requests that are not in flight in the first three round trips
    assert len(record.admitted) >= len(expected.admitted) - 2 * opening
    assert not adaptations(changes)
    assert limiter.statistics().rate_limit is None


def test_rate_is_not_learned_if_that_is_not_wanted() -> None:
    limiter = RateLimiter(concurrency_limit=8, learn_rate=False)
    assert run(nginx(20, 5), 20.0, limiter=limiter).part_throttled(0.0, 20.0) > 0.3
    assert limiter.statistics().rate_limit is None
    with pytest.raises(ValueError, match="learn_rate must be one of True, False, got 'no'"):
        RateLimiter(learn_rate="no")  # type: ignore[arg-type]


def test_learned_rate_shows_in_statistics_events_and_log(caplog: pytest.LogCaptureFixture) -> None:
    limiter = without_rate()
    seen = observed(limiter)
    with caplog.at_level(logging.INFO, "aiothrottle"):
        run(rolling_window(20), 60.0, limiter=limiter)
    assert adaptations(seen, "rate")[0].before == math.inf
    assert limiter.statistics().rate_limit == pytest.approx(20.0, rel=0.05)
    # Three digits at the most.
    begins = r"learns a rate, from [\d.]{1,4}/s on: the server throttles it again and again"
    assert re.search(begins, caplog.text)
    assert "gives up" not in caplog.text


@pytest.mark.parametrize("options", [{}, {"burst": 2}, {"guard": 0.1}])
@virtual
async def test_rate_is_given_up_where_the_server_throttles_no_more(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    limiter = RateLimiter("100/s" if options else None, concurrency_limit=8, **options)
    limiter.update(rate_limit=None)
    ThrottledTransport(limiter)  # which reports the outcomes
    for permit in [await limiter.acquire() for _ in range(8)]:
        permit.report_throttled(1.0)
        permit.release()
    async with limiter.throttle() as permit:
        permit.report_success()
    async with limiter.throttle() as permit:
        permit.report_throttled(1.0)
    for seconds in (0.0, *[50.0] * 10, 5000.0, 45.0):  # idle for 5000
        assert limiter.statistics().rate_limit is not None
        await asyncio.sleep(seconds)
        async with limiter.throttle() as permit:
            permit.report_success()
    assert limiter.statistics().rate_limit is None
    assert caplog.messages[-1] == "'concurrency_limit=8' gives up the rate that it has learned"


@virtual
async def test_limiter_without_reports_learns_nothing() -> None:
    limiter = without_rate()
    for _ in range(4):
        async with limiter.throttle() as permit:
            permit.report_throttled(1.0)
    assert limiter.statistics().rate_limit is None
    assert counts(limiter) == (0, 0)


# ---- the evidence --------------------------------------------------------------------------------


def evidence_of_a_rate() -> Evidence:
    return Evidence(slots=LearnedSlots(most=0.0))  # no number of slots explains the 429s


def event(
    evidence: Evidence, at: float, throttled: int, admitted: int, in_flight: int = 8
) -> float | None:
    """Let a server admit tokens and then throttle; return the rate that is learned."""
    for _ in range(admitted):
        evidence.succeeded(sent_at=at - 0.001, cost=1.0)
    found: float | None = None
    for number in range(throttled):
        sent_at = at - 0.001 if number == 0 else evidence.since
        sent = in_flight + admitted
        search = evidence.throttled(at, sent_at, 1.0, in_flight, sent, undecided=in_flight)
        if search is not None:
            found = found or search.initial
    return found


def test_many_throttled_at_once_are_a_limit_at_the_second_event() -> None:
    evidence = evidence_of_a_rate()
    assert event(evidence, 0.0, throttled=2, admitted=20) is None
    assert event(evidence, 1.0, throttled=2, admitted=20) is None
    assert event(evidence, 2.0, throttled=3, admitted=30) is None, "two looked like chance"
    assert event(evidence, 3.0, throttled=3, admitted=30) == 15.0  # 30 in 2 s
    evidence = evidence_of_a_rate()
    assert event(evidence, 0.0, throttled=3, admitted=20) is None
    assert event(evidence, 1.0, throttled=1, admitted=0) is None, "the server is still closed"
    assert event(evidence, 2.0, throttled=1, admitted=30) == 10.0  # 30 in 3 s
    assert evidence_of_a_rate().throttled(0.0, -1.0, 1.0, 1, sent=1, undecided=1) is None
    for in_flight, throttled, is_limit in ((3, 2, True), (4, 2, False), (4, 3, True)):
        evidence = evidence_of_a_rate()
        event(evidence, 0.0, throttled, 20, in_flight)
        assert (event(evidence, 1.0, throttled, 25, in_flight) is not None) is is_limit


def test_single_429s_are_a_limit_if_the_same_number_is_admitted() -> None:
    evidence = evidence_of_a_rate()
    found = [event(evidence, 1.1 * n, throttled=1, admitted=20 - n % 2) for n in range(6)]
    assert found[:3] == [None] * 3
    assert found[3] == pytest.approx(19 / 2.1)
    evidence = evidence_of_a_rate()
    assert not any(event(evidence, 1.1 * n, throttled=1, admitted=n * 7 % 20) for n in range(30))


def test_chance_is_doubted_after_many_429s_and_after_more_each_time() -> None:
    evidence, at = evidence_of_a_rate(), 0.0
    for needed, most in (5, 10), (4, 20), (4, 30):  # the very first event tells nothing
        for _ in range(needed):
            assert not evidence.waits_alone(is_chance=most > 10)
            event(evidence, at, throttled=1, admitted=10 + 30 * (at % 4.0 == 0.0))
            at += 2.0
        alone = [evidence.waits_alone(is_chance=False) for _ in range(most + 1)]
        assert alone == [True] * most + [False]


def test_event_with_more_429s_outweighs_two_that_looked_like_chance() -> None:
    evidence = evidence_of_a_rate()
    for at, throttled in enumerate([1, 1, 1, 3, 1, 1, 1]):
        assert event(evidence, float(at), throttled, admitted=10 + 30 * (at % 2)) is None
        assert not evidence.is_by_chance
    assert event(evidence, 7.0, throttled=1, admitted=40) is None
    assert evidence.is_by_chance


def test_chance_explains_more_429s_where_there_were_more_before() -> None:
    evidence = searching()
    # A throttled trial after each event: in all four 429s for each ten tokens.
    verdicts(evidence, [40] + [5, 0] * 20, rate=20.0)
    assert not evidence.is_by_chance
    assert any(verdicts(evidence, [5] * 6, rate=5.0, since=60))
    for _ in range(100):  # one of four
        assert evidence.waits_alone(is_chance=False)
        for _ in range(3):
            evidence.succeeded(sent_at=100.0, cost=1.0)
    alone = [evidence.waits_alone(is_chance=False) for _ in range(20)]
    assert not all(alone), "and no more"


def test_old_event_tells_nothing() -> None:
    evidence = evidence_of_a_rate()
    event(evidence, 0.0, throttled=8, admitted=20)
    assert event(evidence, 601.0, throttled=8, admitted=20) is None
    assert event(evidence, 602.0, throttled=8, admitted=20) == 10.0


def given_up_after(evidence: Evidence, search: RateState, every: float) -> float:
    """Return the seconds of answers without a 429 after which the rate is given up."""
    evidence.has_room(search, evidence.since)
    return next(
        seconds
        for seconds in (every * number for number in itertools.count(1))
        if evidence.has_room(search, evidence.since + seconds)
    )


def test_event_before_a_long_closure_tells_something() -> None:
    """As of a server that counts over an hour."""
    evidence = evidence_of_a_rate()
    event(evidence, 0.0, throttled=8, admitted=20)
    for at in range(0, 3000, 30):
        event(evidence, float(at), throttled=8, admitted=0)
    assert event(evidence, 3600.0, throttled=8, admitted=36) == pytest.approx(0.01)
    assert given_up_after(evidence, RateState(20.0), 10.0) > 8900.0


def test_rate_is_given_up_after_long_without_429s_and_comes_back_with_one() -> None:
    for search, every, seconds in (
        (RateState(20.0), 10.0, 600.0),
        (RateState(0.1, scale=2000.0), 10.0, 8000.0),
        (RateState(20.0), 600.0, 6000.0),  # a minute of each ten that are idle counts
        (RateState(0.001), 600.0, 600.0),
    ):
        evidence = evidence_of_a_rate()
        event(evidence, 0.0, throttled=8, admitted=20)
        assert event(evidence, 1.0, throttled=8, admitted=20) == 10.0
        assert given_up_after(evidence, search, every) == seconds
        assert event(evidence, 50000.0, throttled=1, admitted=0) == search.rate


def test_rate_near_a_given_one_is_given_up_earlier() -> None:
    for search, seconds in (
        (RateState(19.5), 600.0),
        (RateState(19.7), 30.0),
        (RateState(19.7, pause=60.0), 180.0),  # of a long window, which may not be full before
    ):
        evidence = Evidence(20.0, slots=LearnedSlots(most=0.0))
        event(evidence, 0.0, throttled=8, admitted=20)
        assert given_up_after(evidence, search, every=10.0) == seconds


def test_first_429_is_a_limit_if_others_use_it() -> None:
    evidence = evidence_of_a_rate()
    begun = evidence.throttled(0.1, 0.0, 1.0, in_flight=1, sent=1, undecided=1, of_all=20.0)
    assert begun is not None
    assert begun.initial == 5.0  # a quarter


def test_client_that_is_ahead_of_others_learns_a_rate_too() -> None:
    evidence = evidence_of_a_rate()
    assert evidence.share(0.0, of_all=20.0) is None, "nothing was throttled"
    event(evidence, 0.0, throttled=1, admitted=1)
    for at in (0.2, 0.5, 0.8, 1.5):
        evidence.succeeded(at, cost=6.0)
    assert evidence.share(0.9, of_all=20.0) is None, "too soon for an average"
    begun = evidence.share(2.0, of_all=20.0)
    assert begun is not None
    assert begun.initial == 12.0  # 24 in 2 s
    # A rate that is given is kept to.
    evidence = Evidence(fastest=20.0)
    event(evidence, 0.0, throttled=1, admitted=1)
    evidence.succeeded(0.5, cost=6.0)
    assert evidence.share(2.0, of_all=20.0) is None


@virtual
async def test_key_keeps_a_rate_of_hours_while_it_is_idle() -> None:
    async with KeyedRateLimiter(concurrency_limit=8) as limiter:
        ThrottledTransport(limiter, key=lambda _: "a")

        async def send(*, is_open: bool) -> None:
            async with limiter.throttle("a") as permit:
                permit.report_success() if is_open else permit.report_throttled(100.0)

        for is_open in (False, True, False, True):
            for _ in range(20):  # closed for 2000 seconds
                await send(is_open=is_open)
        learned = limiter["a"].statistics().rate_limit
        assert learned is not None
        await asyncio.sleep(3000.0)
        assert limiter["a"].statistics().rate_limit == learned
        await asyncio.sleep(90000.0)
        assert limiter["a"].statistics().rate_limit is None


def test_rate_is_kept_on_another_clock() -> None:
    limiter = without_rate()
    run(rolling_window(20), 30.0, seed=3, limiter=limiter)
    run(rolling_window(20), 5.0, seed=0, limiter=limiter)  # whose time is earlier
    learned = limiter.statistics().rate_limit
    assert learned is not None
    evidence = evidence_of_a_rate()
    assert not evidence.has_room(RateState(20.0), 1e6)


def searching() -> Evidence:
    evidence = evidence_of_a_rate()
    event(evidence, 0.0, throttled=8, admitted=20)
    assert event(evidence, 1.0, throttled=8, admitted=90) == 45.0
    return evidence


def verdicts(
    evidence: Evidence, admitted: list[int], rate: float, *, since: int = 2, of_all: float = 0.0
) -> list[bool]:
    """Let the server throttle that rate after so many tokens, once in a second."""
    found = list[bool]()
    for at, tokens in enumerate(admitted, since):
        for _ in range(tokens):
            evidence.succeeded(at - 0.5, 1.0)
        found.append(evidence.is_chance(at, at - 0.1, rate, of_all))
    return found


def test_throttling_far_below_the_best_average_is_chance() -> None:
    evidence = searching()
    assert verdicts(evidence, [40, 20, 20, 20, 20, 20], rate=20.0) == [False] * 5 + [True]
    # A fifth of the requests may be throttled by chance. If it is more, there is a limit after all.
    assert [evidence.waits_alone(is_chance=False) for _ in range(11)] == [True] * 10 + [False]
    # From now on it takes two events with signs to begin, and twice as many to give up.
    assert event(evidence, 10.0, throttled=8, admitted=50) is None
    assert event(evidence, 11.0, throttled=8, admitted=50) == 25.0
    assert verdicts(evidence, [40] + [20] * 10, 20.0, since=12) == [False] * 10 + [True]


def test_throttling_near_the_best_average_is_no_chance() -> None:
    assert not any(verdicts(searching(), [40, 3, 30, 2, 20] * 4, rate=40.0))


def test_probe_and_closed_server_are_no_chance() -> None:
    assert not any(verdicts(searching(), [40, 20, 20, 20, 90] * 4, rate=20.0))
    assert not any(verdicts(searching(), [40] + [20, 0] * 20, rate=20.0))


def test_throttling_far_below_is_no_chance_if_others_use_the_limit() -> None:
    evidence = searching()
    assert not any(verdicts(evidence, [40] + [20] * 20, rate=20.0, of_all=40.0))
    assert evidence.needed == 1
