"""What servers admit, as pure functions of time, each modelled on the documentation of its server.

benchmarks/real_servers measures the real ones.
"""

import random
from collections.abc import Callable
from typing import TypeAlias

Admits: TypeAlias = Callable[[float], bool]
"""Decides about a request that arrives at that time, which never decreases."""


def nginx(rate: float, burst: int) -> Admits:
    """`limit_req` with nodelay: a leaky bucket in thousandths of a request, on a clock of ms."""
    excess, last = 0.0, -1

    def admits(now: float) -> bool:
        nonlocal excess, last
        ms = int(now * 1000)
        wanted = 0 if last < 0 else max(0, excess - rate * (ms - last) + 1000)
        if wanted > burst * 1000:
            return False
        excess, last = wanted, ms
        return True

    return admits


def token_bucket(rate: float, burst: float, debt: float = 0.0) -> Admits:
    """An exact bucket; with a debt of 0.5 Traefik's, which delays what is early by half a token."""
    tokens, last = burst, 0.0

    def admits(now: float) -> bool:
        nonlocal tokens, last
        tokens, last = min(burst, tokens + (now - last) * rate), now
        if tokens < 1.0 - debt:
            return False
        tokens -= 1.0
        return True

    return admits


def vsthrottle(limit: int) -> Admits:
    """Varnish' bucket, in whole tokens: a fraction is lost at each request that is admitted."""
    tokens, last = limit, 0.0

    def admits(now: float) -> bool:
        nonlocal tokens, last
        filled = min(limit, tokens + int((now - last) * limit))
        if not filled:
            return False
        tokens, last = filled - 1, now
        return True

    return admits


def envoy(size: int, interval: float) -> Admits:
    """`local_ratelimit`: a bucket that is filled up at intervals."""
    tokens, fills = size, 0

    def admits(now: float) -> bool:
        nonlocal tokens, fills
        if int(now / interval) > fills:
            tokens, fills = size, int(now / interval)
        if not tokens:
            return False
        tokens -= 1
        return True

    return admits


def sliding_counter(limit: int, period: float = 1.0) -> Admits:
    """HAProxy's `http_req_rate(1s) gt`: the period before counts in part, and so do 429s."""
    counts: dict[int, int] = {}

    def admits(now: float) -> bool:
        number = int(now / period)
        counts[number] = counts.get(number, 0) + 1
        before = counts.get(number - 1, 0) * (number + 1 - now / period)
        return counts[number] + int(before) <= limit

    return admits


def rolling_window(limit: int, period: float = 1.0) -> Admits:
    log: list[float] = []

    def admits(now: float) -> bool:
        log[:] = [at for at in log if at > now - period]
        if len(log) >= limit:
            return False
        log.append(now)
        return True

    return admits


def weighted_counter(limit: int, period: float) -> Admits:
    """A counter of what was admitted: the period before counts in part."""
    counts: dict[int, int] = {}

    def admits(now: float) -> bool:
        number = int(now / period)
        before = counts.get(number - 1, 0) * (number + 1 - now / period)
        if counts.get(number, 0) + before > limit - 1:
            return False
        counts[number] = counts.get(number, 0) + 1
        return True

    return admits


def at_random(part: float, seed: int = 0) -> Admits:
    """Throttle that part of the requests, whatever the rate."""
    chance = random.Random(seed)
    return lambda _: chance.random() >= part


#: Servers that admit 20 requests a second.
OF_TWENTY: dict[str, Callable[[], Admits]] = {
    "nginx burst=20": lambda: nginx(20, 20),
    "nginx burst=5": lambda: nginx(20, 5),
    "nginx without burst": lambda: nginx(20, 0),
    "HAProxy": lambda: sliding_counter(20),
    "Envoy 5": lambda: envoy(5, 0.25),
    "Traefik burst 20": lambda: token_bucket(20, 20, debt=0.5),
    "Traefik burst 5": lambda: token_bucket(20, 5, debt=0.5),
    "Traefik burst 1": lambda: token_bucket(20, 1, debt=0.5),
    "a rolling window": lambda: rolling_window(20),
}
