"""An `AdaptiveRate` in front of a server, as pure functions of time: no loop, no session.

The client does what a session does: it spaces requests evenly, pauses at a 429, lets one request go
ahead after the pause, and doubles pauses without a Retry-After in a row.
"""

import heapq
import math
import random
from typing import NamedTuple

from aiothrottle import AdaptiveConcurrency, AdaptiveRate
from aiothrottle.algorithms.level import Pace
from tests.support.server_limits import Admits

__all__ = ["Arrival", "count", "search", "search_slots"]

_LATENCY = 0.001  # seconds each way


class Arrival(NamedTuple):
    """A request at the server."""

    at: float
    admitted: bool


def count(arrivals: list[Arrival], begin: float, end: float) -> tuple[float, float]:
    """Return the admitted requests per second, and the part that was throttled."""
    answers = [it.admitted for it in arrivals if begin <= it.at < end]
    return sum(answers) / (end - begin), 1.0 - sum(answers) / len(answers)


class _Answer(NamedTuple):
    at: float
    number: int
    sent_at: float
    admitted: bool


def search(
    adaptive: AdaptiveRate,
    admits: Admits,
    seconds: float,
    *,
    retry_after: float | None = None,
    slots: int = 8,
    seed: int = 1,
) -> list[Arrival]:
    """Send for so many seconds, with timers that are late by up to 2 ms."""
    chance = random.Random(seed)
    state = adaptive.start()
    pace = Pace(adaptive.initial, 10.0)
    schedule = pace.start()
    arrivals: list[Arrival] = []
    answers: list[_Answer] = []
    now, begun_at, ends_at, streak = 0.0, -1.0, 0.0, 0
    trial: int | None = None  # the request that goes ahead; 0 until it is sent
    while now < seconds:
        send_at = math.inf
        if len(answers) < slots and not trial:
            send_at = max(now, ends_at)
            if (delay := pace.delay(schedule, send_at, 1)) > 0.0:
                send_at += delay + chance.uniform(0.0, 0.002)
        if not answers or send_at < answers[0].at:
            now = send_at
            pace.take(schedule, now, 1)
            arrivals.append(Arrival(now + _LATENCY, admits(now + _LATENCY)))
            if trial == 0:
                trial = len(arrivals)
            admitted = arrivals[-1].admitted
            heapq.heappush(answers, _Answer(now + 2 * _LATENCY, len(arrivals), now, admitted))
            continue
        answer = heapq.heappop(answers)
        now = answer.at
        if answer.admitted:
            if answer.sent_at > begun_at:
                trial, streak = None, 0
            adaptive.succeeded(state, now, answer.sent_at)
        else:
            if answer.sent_at > begun_at:
                pause = 0.5 * 2.0**streak if retry_after is None else retry_after
                begun_at, ends_at, streak, trial = now, now + pause, streak + 1, 0
            adaptive.throttled(state, now, answer.sent_at, max(0.0, ends_at - now))
        pace.follow(schedule, now, state.rate)
    return arrivals


def search_slots(
    adaptive: AdaptiveConcurrency,
    capacity: int,
    seconds: float,
    *,
    workers: int = 24,
    fails: bool = False,
    seed: int = 1,
) -> list[Arrival]:
    """Send to a server that works on `capacity` at once, 50 to 100 ms each.

    It throttles the others, or answers them with a 500 if it `fails`. After that a worker waits for
    half a second.
    """
    chance = random.Random(seed)
    state = adaptive.start()
    arrivals: list[Arrival] = []
    # Answers, and workers that wait: (when, number, when it was sent, whether it was admitted).
    coming: list[tuple[float, int, float | None, bool]] = []
    number = in_flight = busy = 0
    idle, now = workers, 0.0
    while now < seconds:
        while idle and in_flight < int(state.limit):
            number, idle, in_flight = number + 1, idle - 1, in_flight + 1
            admitted = busy < capacity
            busy += admitted
            arrivals.append(Arrival(now, admitted))
            took = chance.uniform(0.05, 0.1) if admitted else 2 * _LATENCY
            heapq.heappush(coming, (now + took, number, now, admitted))
        now, _, sent_at, admitted = heapq.heappop(coming)
        if sent_at is None:
            idle += 1
            continue
        if admitted:
            busy, idle = busy - 1, idle + 1
            adaptive.succeeded(state, now, sent_at, in_flight)
        else:
            number += 1
            heapq.heappush(coming, (now + 0.5 * chance.uniform(0.5, 1.5), number, None, False))
            report = adaptive.failed if fails else adaptive.throttled
            report(state, now, sent_at)
        in_flight -= 1
    return arrivals
