"""Specifies texts: of errors, of numbers, durations and values, and the name of a limiter."""

import asyncio
import copy
import logging
import math
import pickle
from typing import Any

import pytest

from aiothrottle import AdaptiveRate, KeyedRateLimiter, Rate, RateLimiter, Retry, algorithms, errors
from tests.limiter.common import Unchecked, queued, send, throttle_one
from tests.support.observing import observed
from tests.support.virtually import visit

NOT_GRANTED = "not granted within the timeout"
ANSWERED = "the previous attempt got a response with status 429"
TEXTS: list[tuple[errors.ThrottleError, str]] = [
    (errors.CostTooHigh(11, 10.0), "cost must be at most 10 tokens, got 11"),
    (errors.ThrottleTimeout(3600, timeout=5), f"{NOT_GRANTED} of 5 s: retry after 1 h"),
    (errors.ThrottleTimeout(1e7), f"{NOT_GRANTED}: retry after 115 d 18 h"),
    (errors.ThrottleTimeout(0.0, timeout=90), f"{NOT_GRANTED} of 1 min 30 s: all slots are taken"),
    (
        errors.ThrottleTimeout(3600, timeout=5, store_error="no disk"),
        f"{NOT_GRANTED} of 5 s: no disk",
    ),
    (errors.QueueFull(5, 7200), "max_queue is reached with 5 waiting; retry after 2 h"),
    (errors.QueueFull(5, 0.0), "max_queue is reached with 5 waiting"),
    (errors.LimiterClosed(), "this limiter is closed: make a new one, or close it later"),
    (errors.StoreUnavailable("no answer"), "no answer"),
    (
        errors.RequestDropped("a.org", 1 - 1e-9),
        "a.org is failing: the request was dropped, as 100% of all to it are",
    ),
    (errors.AttemptThrottled(429, 1e6), f"{ANSWERED}, retry after 11 d 14 h"),
    (errors.AttemptThrottled(429, None), ANSWERED),
]


@pytest.mark.parametrize(("error", "text"), TEXTS, ids=lambda each: type(each).__name__)
def test_text_and_key_are_kept_in_another_process(error: errors.ThrottleError, text: str) -> None:
    """A pool breaks or hangs if a worker raises an error that cannot be unpickled."""
    for key in (None, "api.example.org"):
        error.key = key
        assert str(error) == (f"{text} (key {key!r})" if key else text)
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is type(error)
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("key", ["a", None])
async def test_errors_have_the_key_and_the_name_of_the_limiter(key: str | None) -> None:
    options: Unchecked = {"rate_limit": "2/h", "max_queue": 1, "name": "github"}
    limiter = KeyedRateLimiter(**options)["a"] if key else RateLimiter(**options)
    events = observed(limiter)

    async def text(**options: float) -> str:
        with pytest.raises(errors.ThrottleError) as caught:
            await visit(limiter, **options)
        assert (caught.value.key, caught.value.name) == (key, "github")
        shown, _, of = str(caught.value).partition(" (")
        assert of == ("key 'a')" if key else "limiter 'github')")
        return shown

    await visit(limiter, 2)
    assert await text(timeout=1) == "not granted within the timeout of 1 s: retry after 1 h"
    await queued(limiter)
    assert await text(cost=3) == "cost must be at most 2 tokens, got 3"
    assert await text() == "max_queue is reached with 1 waiting; retry after 1 h"
    limiter.update(rate_limit="1/s")
    await asyncio.sleep(5)
    await limiter.aclose()
    assert await text() == "this limiter is closed: make a new one, or close it later"
    assert {event.name for event in events} == {"github"}
    long = str(errors.LimiterClosed(key="a\nb" + "x" * 1000))
    assert ("(key 'a\\nbxxx" in long, len(long) < 300) == (True, True)  # escaped and cut


async def test_timeout_text_names_the_exceeded_bound() -> None:
    limiter = RateLimiter(algorithm=algorithms.WaitUntil(60, raise_after=90, limit=600))
    await visit(limiter)
    (waiting,) = await queued(limiter)
    for timeout, text in (
        (None, "not granted within the timeout of 1 min 30 s: retry after 2 min"),
        (30, "not granted within the timeout of 30 s: retry after 3 min"),
        (100, "not granted within the timeout of 1 min 30 s: retry after 4 min"),
    ):
        with pytest.raises(errors.ThrottleTimeout, match=rf"^{text} \(limiter 'WaitUntil"):
            await limiter.acquire(timeout=timeout)
    waiting.cancel()


WRONG: dict[str, list[Unchecked]] = {
    "timeout must be a finite number of seconds, 0 or more, got ": [-1, math.inf, "1", True],
    "priority must be a finite number, got ": [-math.inf, math.nan, "1", True, False, "", None, []],
    "backoff must be a finite number of seconds, above 0, got ": [0, None, 1j],
    "jitter must be one of 'full', 'decorrelated', got ": ["c", "", None, ["a"]],
}


def test_wrong_value_is_named_with_what_is_right() -> None:
    limiter = RateLimiter(10**6)
    for message, values in WRONG.items():
        name = message.partition(" ")[0]
        call: Unchecked = Retry if name in {"backoff", "jitter"} else limiter.throttled
        for value in values:
            is_number = type(value) in {int, float} or name == "jitter"
            with pytest.raises(ValueError if is_number else TypeError) as raised:
                call(**{name: value})
            assert str(raised.value) == f"{message}{value!r}"
    pauses: list[Unchecked] = [-1, math.nan, math.inf, "1", True, None]
    for pause in pauses:
        error = ValueError if type(pause) in {int, float} else TypeError
        with pytest.raises(error, match=f"a pause must be a finite .*, got {pause!r}$"):
            limiter.pause(pause)
    long: list[Unchecked] = [{"messages": ["what I plan " * 1000]}, b"9" * 5000, [1] * 5000]
    for value in long:
        with pytest.raises(TypeError, match=r"got .{200}\.{3}$"):
            limiter.throttled(value)
    with pytest.raises(ValueError, match="priority must be a finite number, got"):
        limiter.throttled(priority=10**400)
    limiter.throttled(priority=10**300)
    falsy: list[Unchecked] = [None, "", []]
    for value in falsy:
        with pytest.raises(TypeError, match="priority must be a finite number, got"):
            limiter.throttle(priority=value)


def duration(seconds: float) -> str:
    return str(errors.ThrottleTimeout(seconds)).partition("retry after ")[2]


def number(value: float) -> str:
    return str(errors.CostTooHigh(value, 1.0)).partition("got ")[2]


DURATIONS = [
    *((3e-9, "less than 0.001 ms"), (1e-6, "0.001 ms"), (0.0123456, "12.3 ms"), (0.25, "250 ms")),
    *((0.9994, "999 ms"), (0.9996, "1 s"), (1.5, "1.5 s"), (59.94, "59.9 s"), (59.96, "1 min")),
    *((60, "1 min"), (61, "1 min 1 s"), (3594, "59 min 54 s"), (3599.6, "1 h"), (86399, "1 d")),
    *((3661, "1 h 1 min"), (86400, "1 d"), (90000, "1 d 1 h"), (1e7, "115 d 18 h")),
    (math.inf, "Infinity s"),
]
NUMBERS = {10.0: "10", 1e7: "10000000", 1e22: "1" + 22 * "0", 1e-7: "0.0000001", -0.5: "-0.5"}


def test_durations_and_numbers_are_written_for_people() -> None:
    assert [(seconds, duration(seconds)) for seconds, _ in DURATIONS] == DURATIONS
    assert {value: number(value) for value in NUMBERS} == NUMBERS
    assert number(0.1 + 0.2) == "0.3"
    for rate, text in ((2 / 3, "0.667"), (1234567, "1230000"), (20, "20")):
        assert f"at {text}/s" in repr(RateLimiter(AdaptiveRate(rate, rate, rate)))


# ---- the name of a limiter, by which log, errors, events and repr call it ------------------------

RESOURCES = {"requests": "5/s", "tokens": ["1/s", "9/min"]}
ADAPTIVE = AdaptiveRate(initial=4, minimum=1, maximum=9)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"rate_limit": "10/s"}, "10/s"),
        ({"rate_limit": " 600 per min"}, "600 per min"),
        ({"rate_limit": 1.9}, "1.9/s"),
        ({"rate_limit": Rate(7, 0.5)}, "7/0.5s"),
        ({"rate_limit": ["10/s", 500], "burst": 3}, "10/s and 500/s"),
        ({"rate_limit": RESOURCES}, "requests 5/s, tokens 1/s and 9/min"),
        ({"rate_limit": "server"}, "rate_limit='server'"),
        ({"rate_limit": ADAPTIVE}, repr(ADAPTIVE)),
        ({"rate_limit": "10/s", "concurrency_limit": 3, "name": "github"}, "github"),
        ({"concurrency_limit": 8}, "concurrency_limit=8"),
        ({"algorithm": algorithms.TokenBucket("3/s")}, repr(algorithms.TokenBucket("3/s"))),
        *(({"rate_limit": "9/s", "guard": guard}, "9/s") for guard in (0.0, 0.25, "auto")),
        ({}, "no limit"),
    ],
    ids=str,
)
def test_name_is_given_or_the_limits_as_written(limits: Unchecked, name: str) -> None:
    limiter = RateLimiter(**limits)
    assert limiter.name == name
    shown = "at 4/s, " if name == repr(ADAPTIVE) else ""
    assert repr(limiter).startswith(f"<RateLimiter {name!r}, {shown}")
    assert name != "9/s" or limiter.statistics().rate_limit == 9.0  # whatever the guard


def test_update_changes_the_default_name_only() -> None:
    limiter, named = RateLimiter("10/s"), RateLimiter("10/s", name="github")
    for each in (limiter, named):
        each.update(rate_limit=["4/s", "100/min"])
        each.update(concurrency_limit=3)
    assert (limiter.name, named.name) == ("4/s and 100/min", "github")
    limiter.update(rate_limit=None)
    assert limiter.name == "concurrency_limit=3"
    overrides: Unchecked = {"b": {"rate_limit": "2/s"}}
    for all_keys, one in (("hosts", "hosts"), (None, "2/s")):
        assert KeyedRateLimiter("1/s", overrides=overrides, name=all_keys)["b"].name == one
    wrong: list[Any] = ["", 7, b"x"]
    for name in wrong:
        with pytest.raises(TypeError, match="name must be a text, such as"):
            RateLimiter("1/s", name=name)


async def test_log_has_the_name_and_slowness(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    RateLimiter({"requests": "10/s", "tokens": "1000000/min"}).pause(5)
    RateLimiter("10/s", guard="auto", burst=5, name="github").pause(5)
    limiter = RateLimiter("10/s", guard="auto")
    requests = [*(send(limiter, took=0.01) for _ in range(8))]
    await asyncio.gather(*requests, *(throttle_one(limiter, 0.2, took=0.01) for _ in range(2)))
    await throttle_one(limiter, 0.2, took=0.01)
    for _ in range(200):
        await asyncio.sleep(1)
        await asyncio.gather(*(send(limiter, took=0.01) for _ in range(20)))
    lines = [line for line in caplog.messages if not line.startswith("'10/s' is paused")]
    slower = "'10/s' is slower than its limit, with bursts of 5 at the most"
    assert lines == [
        "'requests 10/s, tokens 1000000/min' is paused for 5 s: the program called pause()",
        "'github' is paused for 5 s: the program called pause()",
        f"{slower}: the server throttled a request within the limit",
        "'10/s' uses its whole limit again",
    ]


async def test_timeout_names_the_limiter_that_is_the_cause() -> None:
    top = RateLimiter("1/h", name="account")
    middle = KeyedRateLimiter("1/min", parent=top)
    below = RateLimiter("1/s", parent=middle["ann"], name="page")

    async def cause(limiter: RateLimiter, timeout: float, text: str) -> object:
        with pytest.raises(errors.ThrottleTimeout, match=text) as caught:
            await visit(limiter, timeout=timeout)
        assert caught.value.name == limiter.name
        return caught.value.limited_by

    await visit(below)
    for limiter, timeout in ((below, 0.5), (below, 100.0), (middle["ann"], 100.0)):
        assert await cause(limiter, timeout, "retry after 1 h, limited by 'account'") == "account"
    assert await cause(top, 100, r"retry after 1 h \(limiter 'account'\)$") is None
    middle.pause("ann", 7200)
    assert await cause(below, 10, "retry after 2 h, limited by 'ann'") == "ann"
    for above_is_full, by in ((True, "account"), (False, None)):
        top = RateLimiter(concurrency_limit=1, name="account")
        below = RateLimiter(concurrency_limit=1, parent=top, name="page")
        permit = await (top if above_is_full else below).acquire()
        assert await cause(below, 1, "all slots are taken") == by
        permit.release()
    top = RateLimiter(algorithm=algorithms.WaitUntil(1, 1, 10), name="account")
    below = RateLimiter(None, parent=top, name="page")
    waiting = [*await queued(top, 3), *await queued(below)]
    for error in (await asyncio.gather(*waiting, return_exceptions=True))[-1:]:
        assert isinstance(error, errors.ThrottleTimeout)
        assert (error.name, error.limited_by) == ("page", "account")
