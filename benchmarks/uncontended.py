"""What one `async with` costs when nobody waits: `uv run benchmarks/uncontended.py`.

The no-op is the least that this shape can cost: a call that makes an object, and two coroutines
that do nothing.
"""

import asyncio
from typing import Any, Self

from aiolimiter import AsyncLimiter
from measure import arguments, interleave, machine, table

from aiothrottle import Rate, RateLimiter, TokenBucket


class NoOp:
    """A throttle that throttles nothing."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc: object, traceback: object) -> None:
        return None


class NoOpLimiter:
    """A limiter that limits nothing."""

    def throttle(self, cost: float = 1.0) -> NoOp:  # noqa: ARG002 - the shape of the real one
        """Give what does nothing."""
        return NoOp()


async def compare(rounds: int, repeat: int) -> dict[str, float]:
    """Measure all contestants, none of which ever has to wait."""
    no_op = NoOpLimiter()
    window = RateLimiter(Rate(1_000_000, 0.001), 1000)
    bucket = RateLimiter(1e9, 1000, algorithm=TokenBucket)
    semaphore = asyncio.Semaphore(1000)
    aiolimiter = AsyncLimiter(1e9, 1)

    def throttled(limiter: Any) -> Any:  # noqa: ANN401 - two kinds of limiter
        async def run() -> None:
            for _ in range(repeat):
                async with limiter.throttle():
                    pass

        return run

    def entered(manager: Any) -> Any:  # noqa: ANN401 - any async context manager
        async def run() -> None:
            for _ in range(repeat):
                async with manager:
                    pass

        return run

    contestants = {
        "no-op": throttled(no_op),
        "asyncio.Semaphore": entered(semaphore),
        "aiolimiter": entered(aiolimiter),
        "RollingWindow": throttled(window),
        "TokenBucket": throttled(bucket),
    }
    return await interleave(contestants, rounds=rounds, per_round=repeat)


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=(25, "rounds"), repeat=(20_000, "entries a round"))
    medians = asyncio.run(compare(options.rounds, options.repeat))
    rows = [["async with", "ns", "x no-op", "x aiolimiter"]]
    for name, ns in medians.items():
        ratios = [ns / medians["no-op"], ns / medians["aiolimiter"]]
        rows.append([name, f"{ns:.0f}", *(f"{ratio:.2f}" for ratio in ratios)])
    print(machine())
    print(table(rows))


if __name__ == "__main__":
    main()
