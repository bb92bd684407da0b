"""429s by chance, and answers of uneven length: neither makes a limiter slow."""

import random
from itertools import accumulate, count, pairwise

import pytest

from aiothrottle import RateLimiter
from aiothrottle.adaptive.guard import Chance, LearnedBurst
from tests.adaptive.session_in_time import Refusal, run
from tests.support.server_limits import Admits, at_random, envoy, nginx, sliding_counter


@pytest.mark.parametrize(("part", "least"), [(0.02, 0.96), (0.1, 0.75)])
def test_429s_by_chance_cost_a_known_rate_little_more_than_their_tokens(
    part: float, least: float
) -> None:
    found = list[float]()
    for seed in range(4):
        limiter = RateLimiter("10/s", concurrency_limit=8)
        record = run(at_random(part, seed), 120.0, seed=seed, limiter=limiter, retry_after=1)
        found.append(record.used(60.0, 120.0, 10.0))
    assert sum(found) / len(found) >= least


def test_one_in_twenty_429s_by_chance_cost_little_without_a_rate() -> None:
    """Of many requests in flight, several may be throttled before the next answer."""
    limiter = RateLimiter(concurrency_limit=8)
    record = run(at_random(0.05, seed=0), 60.0, limiter=limiter, retry_after=1, takes=0.1)
    assert record.used(30.0, 60.0, 66.0) >= 0.85


def test_rate_that_chance_has_taught_is_given_up_in_two_minutes() -> None:
    """Two of three requests in flight were throttled: that looked like a limit."""
    limiter = RateLimiter(concurrency_limit=8)
    record = run(at_random(0.07, 7), 150.0, seed=7, limiter=limiter, retry_after=1, takes=0.2)
    assert 0.0 < record.used(30.0, 80.0, 34.0) <= 0.1, "a rate was learned"
    assert record.used(130.0, 150.0, 34.0) >= 0.85


def test_one_in_seven_429s_by_chance_are_recognised_in_the_end() -> None:
    found = list[float]()
    for seed in range(2):
        limiter = RateLimiter(concurrency_limit=8)
        record = run(at_random(0.15, seed), 600.0, seed=seed, limiter=limiter, takes=1.0)
        found.append(record.used(450.0, 600.0, 7.0))
    assert sum(found) / len(found) >= 0.6


@pytest.mark.parametrize("seed", [4, 8])
def test_limit_just_below_what_the_slots_allow_is_not_taken_for_chance(seed: int) -> None:
    """It throttles few of the requests in flight, as chance does."""
    limiter = RateLimiter(concurrency_limit=8)
    record = run(nginx(50, 5), 60.0, seed=seed, limiter=limiter, retry_after=1, takes=0.1)
    assert record.part_throttled(30.0, 60.0) <= 0.01


@pytest.mark.parametrize("seed", range(3))
def test_429s_by_chance_cost_little_without_a_rate_and_hide_no_limit(seed: int) -> None:
    def admits(now: float) -> bool:
        return (chance if now < 1120.3 else limit)(now)

    chance, limit = at_random(0.02, seed), nginx(10, 5)
    limiter = RateLimiter(concurrency_limit=8)
    record = run(admits, 240.0, seed=seed, limiter=limiter, retry_after=1, every=1.0)
    assert record.used(60.0, 119.0, 24.0) >= 0.95
    assert record.part_throttled(121.0, 140.0) <= 0.2
    assert record.part_throttled(140.0, 240.0) <= 0.01


@pytest.mark.parametrize(
    ("part", "takes", "most", "least"),
    [(0.05, 2.0, 3.5, 0.9), (0.1, 1.0, 7.0, 0.75), (0.2, 0.5, 14.0, 0.4)],
)
def test_server_that_is_overloaded_is_used_after_minutes(
    part: float, takes: float, most: float, least: float
) -> None:
    """It throttles by chance, and going slower makes that no rarer. `most` fit into the slots."""
    found = list[float]()
    for seed in range(4):
        limiter = RateLimiter(concurrency_limit=8)
        record = run(at_random(part, seed), 300.0, seed=seed, limiter=limiter, takes=takes)
        found.append(record.used(200.0, 300.0, most))
    assert sum(found) / len(found) >= least


@pytest.mark.parametrize("rate", [None, "10/s"])
def test_many_429s_by_chance_do_not_stop_a_limiter(rate: str | None) -> None:
    """As of a model that is overloaded, however few requests this client sends."""
    limiter = RateLimiter(rate, concurrency_limit=8)
    record = run(at_random(0.2, seed=2), 200.0, seed=2, limiter=limiter, takes=0.2)
    assert record.used(100.0, 200.0, 1.0) >= 2.0, "requests a second"


@pytest.mark.parametrize("seed", range(2))
def test_window_with_few_tokens_is_not_taken_for_chance(seed: int) -> None:
    """While the rate falls to its limit, as many are admitted in a second as before."""
    window, limiter = envoy(20, 20.0), RateLimiter(concurrency_limit=8)
    record = run(lambda at: window(at + 14.0), 900.0, seed=seed, limiter=limiter, takes=0.1)
    assert record.part_throttled(300.0, 900.0) <= 0.08


def test_trial_that_is_throttled_by_chance_holds_up_nobody() -> None:
    throttled = {10, 40, 60, 95, 105, 150, 170, 172}  # the last is the trial after the last pause
    number = count(1)
    limiter = RateLimiter(concurrency_limit=8)
    record = run(
        lambda _: next(number) not in throttled, 30.0, limiter=limiter, workers=4, every=0.1
    )
    assert max(later - at for at, later in pairwise(record.admitted)) < 2.0


@pytest.mark.parametrize("server", [nginx(20, 0), nginx(20, 5), sliding_counter(20)])
def test_limit_is_not_taken_for_chance(server: Admits) -> None:
    record = run(server, 120.0)
    assert record.part_throttled(10.0, 120.0) <= 0.005
    assert record.used(10.0, 120.0, 20.0) >= 0.85


def test_answers_of_uneven_length_cost_little() -> None:
    def admits(_: float) -> bool:
        return chance.random() < 0.5

    chance = random.Random(1)
    # Half of the answers take half a second: 200, as what is admitted here.
    record = run(admits, 60.0, limiter=RateLimiter("10/s"), refusal=Refusal(200, after=0.5))
    assert (len(record.admitted) + len(record.throttled)) / 600.0 >= 0.955


# ---- its events ----------------------------------------------------------------------------------


def events(gaps: list[int], chance: Chance, burst: float = 20.0, since: int = 0) -> list[bool]:
    sent = list(accumulate(gaps, initial=since))[1:]
    return [chance.throttled(it, burst) for it in sent]


def test_cuts_without_effect_show_chance() -> None:
    assert events([300, 40, 60, 30, 70, 50], Chance()) == [False] * 5 + [True]
    assert not any(events([300, 5, 9, 9, 12, 40], Chance())), "a burst that is too large"
    assert not any(events([300, 20, 15, 25, 90, 140], Chance())), "each cut helps"
    assert not any(events([300, 250, 250, 100, 300, 280], Chance())), "too rare to care"
    assert not any(events([300, 50, 40, 30, 40, 55], Chance())), "the tokens of a limit"


def test_chance_is_given_up_if_the_burst_was_the_reason_after_all() -> None:
    chance = Chance()
    events([300, 40, 60, 30, 70, 50], chance)
    assert events([100, 40, 45, 60, 20], chance, since=550) == [True] * 5
    chance = Chance()
    events([300, 40, 60, 30, 70, 50], chance)
    assert events([8, 5, 9, 6], chance, since=550) == [True, True, True, False]
    assert not any(events([40, 90] * 5, chance, since=578)), "twice as many events are needed"
    assert events([40] * 2, chance, since=1228) == [False, True]


def test_burst_returns_with_the_limit_that_it_had() -> None:
    burst = LearnedBurst(most=20.0, interval=0.05)
    sizes = list[float]()
    for number, sent in enumerate([50, 80, 140, 180, 240, 270, 320], 1):
        burst.throttled(now=5.0 * number, sent_at=5.0 * number - 0.1, sent=sent)
        sizes.append(burst.size)
    assert sizes == [10.0, 5.0, 2.0, 1.0, 1.0, 20.0, 20.0]
    assert burst.steps == 0
    assert burst.with_limit(10.0, 0.1).size == 10.0
