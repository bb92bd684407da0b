"""Throttle work other than HTTP: programs that are started, and files that are read.

Any awaitable can be inside `async with limiter.throttle()`.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from aiothrottle import RateLimiter

files_limiter = RateLimiter("100/s", concurrency_limit=4)


# No more than 4 files are open at once, and the disk rests in between.
@files_limiter.throttled()
async def count_lines(file: Path) -> int:
    """Count the lines of a file, in a thread, since reading blocks."""
    return len((await asyncio.to_thread(file.read_bytes)).splitlines())


async def square(limiter: RateLimiter, number: int) -> int:
    """Let another program do the work, and wait until it is done."""
    async with limiter.throttle() as permit:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"print({number} ** 2)"), stdout=asyncio.subprocess.PIPE
        )
        try:
            output, _ = await program.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):  # it may have ended already
                program.kill()  # Ctrl-C: leave nothing running behind
            await program.wait()
            raise
    print(f"{number} squared is {int(output)} (waited {permit.waited:.2f} s)")
    return int(output)


async def main() -> None:
    """Run both."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    lines = await asyncio.gather(*map(count_lines, files))
    for file, number in zip(files, lines, strict=True):
        print(f"{file.name} has {number} lines")

    two_programs = RateLimiter("20/s", concurrency_limit=2)  # 2 at once, 20 started per second
    squares = await asyncio.gather(*(square(two_programs, number) for number in range(8)))
    print(f"the sum of the squares is {sum(squares)}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
