"""How much of a limit is used, and whether it is ever exceeded: `uv run benchmarks/accuracy.py`.

Three seconds of saturated demand. Who counts stands inside the `throttle()` bodies and reads the
clock there, as an observer would; nothing is allowed for.
"""

import asyncio
import time

from measure import arguments, machine, table

from aiothrottle import RateLimiter

RATES = (10, 100, 1_000, 10_000)


async def saturate(rate: int, seconds: float) -> list[float]:
    """Ask for more than the limit allows; give the instants at which bodies began."""
    limiter = RateLimiter(rate, max(10, rate // 10))
    instants: list[float] = []
    end = time.monotonic() + seconds

    async def worker() -> None:
        while time.monotonic() < end:
            async with limiter.throttle():
                instants.append(time.monotonic())

    await asyncio.gather(*(worker() for _ in range(min(2 * rate, 2_000))))
    return [instant for instant in instants if instant < end]


def greatest_count(instants: list[float], period: float) -> int:
    """Give the greatest number of instants in any half-open window of that length."""
    first = greatest = 0
    for last, instant in enumerate(instants):
        while instant - instants[first] >= period:
            first += 1
        greatest = max(greatest, last - first + 1)
    return greatest


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, seconds=(3, "seconds of demand"))
    rows = [["RollingWindow", "used", "greatest count in 1 s"]]
    for rate in RATES:
        instants = asyncio.run(saturate(rate, options.seconds))
        used = len(instants) / (rate * options.seconds)
        rows.append([f"{rate}/s", f"{used:.2%}", str(greatest_count(instants, 1.0))])
    print(machine())
    print(table(rows))


if __name__ == "__main__":
    main()
