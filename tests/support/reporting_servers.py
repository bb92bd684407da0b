"""Servers that limit requests and report it, as widespread frameworks do: pure models.

Each model states what its framework sends, read from its source in the versions named: which
fields, how they are rounded, and when its windows begin. Time is an argument, by the clock of the
server.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Protocol

LIMIT, PERIOD = 20, 1.0

Answer = tuple[int, dict[str, str]]
#: Headers by the time, the time of the reset and the remainder.
Report = Callable[[float, float, int], dict[str, str]]


class Server(Protocol):
    """Answers a request that arrives at `now` with a status and headers."""

    def answer(self, now: float) -> Answer: ...


def _date(now: float, renewed: float = 0.0) -> dict[str, str]:
    """Return the Date; uvicorn renews it once a second, `renewed` seconds after its begin."""
    return {"Date": formatdate(math.floor(now - renewed), usegmt=True)}


_LATE = 0.9


@dataclass
class Windows:
    """Fixed windows; each begins with the first request after the end of the one before."""

    report: Report
    throttled: Callable[[float, float], str]
    limit: int = LIMIT
    period: float = PERIOD
    renewed: float = 0.0
    _resets_at: float = -math.inf
    _count: int = 0

    def answer(self, now: float) -> Answer:
        if now >= self._resets_at:
            self._resets_at, self._count = now + self.period, 0
        self._count += 1
        headers = self.report(now, self._resets_at, max(0, self.limit - self._count))
        headers |= _date(now, self.renewed)
        if self._count <= self.limit:
            return 200, headers
        return 429, headers | {"Retry-After": self.throttled(now, self._resets_at)}


def _wait(now: float, resets_at: float) -> int:
    return math.ceil(resets_at - now)


def _rounded_up(now: float, resets_at: float) -> str:
    return str(_wait(now, resets_at))


def fields(prefix: str, limit: int, remaining: int, reset: object) -> dict[str, str]:
    values = {"Limit": limit, "Remaining": remaining, "Reset": reset}
    return {f"{prefix}{name}": str(value) for name, value in values.items()}


def express_legacy(limit: int = LIMIT, period: float = PERIOD) -> Server:
    """express-rate-limit 8, `legacyHeaders`: epoch seconds, rounded up."""
    return Windows(
        lambda _, at, left: fields("X-RateLimit-", limit, left, math.ceil(at)),
        _rounded_up,
        limit=limit,
        period=period,
    )


def express_draft_6() -> Server:
    """express-rate-limit 8 and hono-rate-limiter, `standardHeaders`: seconds, rounded up."""
    return Windows(
        lambda now, at, left: {
            "RateLimit-Policy": f"{LIMIT};w=1",
            **fields("RateLimit-", LIMIT, left, _wait(now, at)),
        },
        _rounded_up,
    )


def koa() -> Server:
    """koa-ratelimit 6, memory: an exact epoch; the wait of a 429 is cut, so it is mostly 0."""
    return Windows(
        lambda _, at, left: fields("X-RateLimit-", LIMIT, left, f"{at:.6f}"),
        lambda now, at: str(int(at - now)),
    )


def of_limits(reset: Callable[[float], float], renewed: float = 0.0) -> Server:
    """Servers on the package limits: a reset a second too late; Retry-After with a 200."""
    return Windows(
        lambda now, at, left: {
            **fields("X-RateLimit-", LIMIT, left, reset(at)),
            "Retry-After": str(int(reset(at) - now)),
        },
        lambda now, at: str(int(reset(at) - now)),
        renewed=renewed,
    )


def rate_limiter_flexible() -> Server:
    """rate-limiter-flexible, with the headers of its README: milliseconds in Retry-After."""
    return Windows(
        lambda now, at, left: {
            "Retry-After": f"{at - now:.3f}",
            **fields("X-RateLimit-", LIMIT, left, math.ceil(at)),
        },
        lambda now, at: f"{at - now:.3f}",
    )


class Nest:
    """@nestjs/throttler 6: sliding logs, and a reset of a window that does not slide.

    A throttled request is followed by a block as long as the window; its response has a
    Retry-After only. Several throttlers have names, which end their headers.
    """

    def __init__(self, **limits: tuple[int, float]) -> None:
        named = limits.items() or [("", (LIMIT, PERIOD))]
        self._throttlers = [(f"-{name}" if name else "", _Throttler(*it)) for name, it in named]

    def answer(self, now: float) -> Answer:
        headers = _date(now)
        for suffix, throttler in self._throttlers:
            throttler.count(now)
            if throttler.blocked_until > -math.inf:
                wait = str(math.ceil(throttler.blocked_until - now))
                return 429, headers | {f"Retry-After{suffix}": wait}
            fields = throttler.fields(now).items()
            headers |= {f"{name}{suffix}": value for name, value in fields}
        return 200, headers


class _Throttler:
    def __init__(self, limit: int, period: float) -> None:
        self.limit, self.period = limit, period
        self.blocked_until = -math.inf
        self._hits: deque[float] = deque()
        self._expires_at = -math.inf

    def count(self, now: float) -> None:
        while self._hits and self._hits[0] <= now:
            self._hits.popleft()
        if now >= self._expires_at:
            self._expires_at = now + self.period
        if now >= self.blocked_until > -math.inf:
            self._hits.clear()
            self.blocked_until = -math.inf
        if self.blocked_until == -math.inf:
            self._hits.append(now + self.period)
            if len(self._hits) > self.limit:
                self.blocked_until = now + self.period

    def fields(self, now: float) -> dict[str, str]:
        reset = math.ceil(self._expires_at - now)
        return fields("X-RateLimit-", self.limit, self.limit - len(self._hits), reset)


class Litestar:
    """Litestar 2: windows begin and end with the seconds of the clock."""

    def __init__(self) -> None:
        self._resets_at = 0
        self._count = 0

    def answer(self, now: float) -> Answer:
        second = int(now)
        if second >= self._resets_at:
            self._resets_at, self._count = second + int(PERIOD), 0
        admitted = self._count < LIMIT
        self._count += admitted
        reset = self._resets_at - second
        headers = {
            "RateLimit-Policy": f"{LIMIT}; w=1",
            **fields("RateLimit-", LIMIT, LIMIT - self._count, reset),
        }
        return (200 if admitted else 429), _date(now, _LATE) | headers


class Quart:
    """Quart-Rate-Limiter: GCRA; the reset is when everything is back, rounded up."""

    def __init__(self) -> None:
        self._full_at = -math.inf

    def answer(self, now: float) -> Answer:
        each = PERIOD / LIMIT
        wait = self._full_at - now - (PERIOD - each)
        if wait <= 0.0:
            self._full_at = max(self._full_at, now) + each
        used = max(0.0, self._full_at - now)
        headers = fields("RateLimit-", LIMIT, int((PERIOD - used) / each + 1e-9), math.ceil(used))
        if wait <= 0.0:
            return 200, _date(now, _LATE) | headers
        return 429, _date(now, _LATE) | headers | {"Retry-After": str(math.ceil(wait))}


class Bucket:
    """A token bucket; `report` returns headers by the status of an answer and the tokens left."""

    def __init__(
        self,
        size: float,
        rate: float,
        report: Callable[[int, float], dict[str, str]],
        *,
        cost: float = 1.0,
        status: int = 429,
    ) -> None:
        self._size, self._rate, self._report = size, rate, report
        self._cost, self._status = cost, status
        self._tokens, self._at = size, -math.inf

    def answer(self, now: float) -> Answer:
        elapsed, self._at = min(now - self._at, 1e6), now
        self._tokens = min(self._size, self._tokens + elapsed * self._rate)
        status = 200 if self._tokens >= self._cost else self._status
        self._tokens -= self._cost if status == 200 else 0.0
        return status, _date(now) | self._report(status, self._tokens)


def of_bucket(size: int, rate: float, reset: Callable[[float], int]) -> Server:
    """A bucket that reports whole tokens, and a reset by the tokens that are left."""
    return Bucket(size, rate, lambda _, left: fields("x-ratelimit-", size, int(left), reset(left)))


def envoy(size: int, rate: float) -> Server:
    """Envoy 1.3x, `local_ratelimit`: the reset is that of the next token, rounded up."""
    return of_bucket(size, rate, lambda left: int(left < 1.0))


def gcra(size: int, rate: float) -> Server:
    """A bucket whose reset is when it is full, rounded up to whole seconds."""
    return of_bucket(size, rate, lambda left: math.ceil((size - left) / rate))


class Log:
    """A log that slides; the reset is when its oldest request leaves it."""

    def __init__(self, report: Report, *, limit: int, period: float) -> None:
        self._report, self._limit, self._period = report, limit, period
        self._hits: deque[float] = deque()

    def answer(self, now: float) -> Answer:
        while self._hits and self._hits[0] <= now:
            self._hits.popleft()
        admitted = len(self._hits) < self._limit
        if admitted:
            self._hits.append(now + self._period)
        headers = self._report(now, self._hits[0], self._limit - len(self._hits))
        return (200 if admitted else 429), _date(now) | headers


REPORTING: dict[str, Callable[[], Server]] = {
    "express, legacy": express_legacy,
    "express, draft 6": express_draft_6,
    "koa": koa,
    "NestJS": Nest,
    "Litestar": Litestar,
    "Quart": Quart,
    # Flask-Limiter 4, fixed windows: an epoch, cut. slowapi 0.1: the same, but not cut.
    "Flask-Limiter": lambda: of_limits(lambda at: int(at + 1)),
    "slowapi": lambda: of_limits(lambda at: at + 1, renewed=_LATE),
    "rate-limiter-flexible": rate_limiter_flexible,
}
