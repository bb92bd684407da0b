"""Draw the pictures of docs/pictures: `python benchmarks/pictures.py` draws all of them again.

All instants are in virtual time, so every machine draws the same pictures.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from aiothrottle import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    RateLimiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    ThrottleError,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.simulation import Server, simulate
from aiothrottle.testing import VirtualTimeLoop, greatest_count

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"

# Eight come at once, twice, around the edge of a second.
COMING = [0.7] * 8 + [1.3] * 8
ALGORITHMS: dict[str, Callable[[], RateLimiter]] = {
    'SlidingWindowLog("5/s")': lambda: RateLimiter(algorithm=SlidingWindowLog("5/s")),
    'TokenBucket("5/s", burst=3)': lambda: RateLimiter(algorithm=TokenBucket("5/s", burst=3)),
    'LeakyBucket("5/s")': lambda: RateLimiter(algorithm=LeakyBucket("5/s")),
    'FixedWindow("5/s")': lambda: RateLimiter(algorithm=FixedWindow("5/s")),
    'SlidingWindowCounter("5/s", buckets=4)': lambda: RateLimiter(
        algorithm=SlidingWindowCounter("5/s", buckets=4)
    ),
    "WaitUntil(0.2, raise_after=1, limit=2)": lambda: RateLimiter(algorithm=WaitUntil(0.2, 1, 2)),
    "Cooldown(5, 1)": lambda: RateLimiter(algorithm=Cooldown(5, 1)),
}


class Palette(NamedTuple):
    """The colours of a picture."""

    paper: str
    text: str
    faint: str
    dot: str
    cross: str


PALETTES = {
    "light": Palette("#ffffff", "#1f2328", "#d0d7de", "#0969da", "#bc4c00"),
    "dark": Palette("#131416", "#e6edf3", "#3d444d", "#58a6ff", "#f0883e"),
}


class Row(NamedTuple):
    """One strip of dots: each is a request, at an instant; a cross was rejected or throttled."""

    title: str
    note: str
    dots: list[tuple[float, bool]]


# ---- rows -------------------------------------------------------------------------------------


def rows_of_algorithms() -> Iterator[Row]:
    """Yield the grants of each algorithm for the same arrivals."""
    yield Row("Arrivals", "8 at 0.7 s, 8 at 1.3 s", [(at, False) for at in COMING])
    for name, make in ALGORITHMS.items():
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            dots = runner.run(serve(make))
        most = greatest_count([at for at, cross in dots if not cross], period=1.0)
        yield Row(name, f"most in a second: {most}", dots)


async def serve(make: Callable[[], RateLimiter]) -> list[tuple[float, bool]]:
    """Serve the arrivals; return when each was granted, or rejected."""
    loop = asyncio.get_running_loop()
    dots: list[tuple[float, bool]] = []

    async def come(limiter: RateLimiter, at: float) -> None:
        await asyncio.sleep(at)
        try:
            async with limiter.throttle():
                dots.append((loop.time(), False))
        except ThrottleError:
            dots.append((loop.time(), True))

    async with make() as limiter:
        await asyncio.gather(*(come(limiter, at) for at in COMING))
    return dots


def rows_of_crawl() -> Iterator[Row]:
    """Yield the requests of ten workers to a server of 10/s, without a limiter and with one."""
    server = Server("10/s", retry_after="none")
    ways: dict[str, Callable[[], RateLimiter]] = {
        "Without a limiter": lambda: RateLimiter(concurrency_limit=10, learn_rate=False),
        'RateLimiter("10/s", guard=0.05)': lambda: RateLimiter("10/s", guard=0.05),
    }
    for name, make in ways.items():
        outcome = simulate(make, server, workers=10, seconds=4.0)
        yield Row(
            name,
            f"{outcome.sent} sent, {outcome.throttled} throttled",
            [(arrival.at, arrival.throttled) for arrival in outcome.arrivals],
        )


# ---- drawing ----------------------------------------------------------------------------------

WIDTH, MARGIN, TITLE, DOT, PITCH = 440, 12, 22, 2.9, 7.0
#: Seconds that are shown, and the seconds of one column of dots.
SECONDS, COLUMN = 4.0, 0.05


def picture(rows: Iterable[Row], caption: str, palette: Palette) -> str:
    """Return the SVG of the rows, one below the other, over one axis of time."""
    body: list[str] = []
    top = float(MARGIN)
    for row in rows:
        columns = columns_of(row)
        base = top + TITLE + PITCH * max(2, *(len(column) for column in columns.values()))
        body += strip(row, columns, top, base, palette)
        top = base + 14
    for second in range(int(SECONDS) + 1):
        anchor = {0: "start", int(SECONDS): "end"}.get(second, "middle")
        label = f"{second} s"
        body.append(text(place(second), top + 4, label, palette.text, f'text-anchor="{anchor}"'))
    height = top + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12.5">'
    )
    name = f"<title>{escape(caption)}</title>"
    paper = f'<rect width="{WIDTH}" height="{height:g}" rx="6" fill="{palette.paper}"/>'
    return "\n".join([head, name, paper, *body, "</svg>\n"])


def columns_of(row: Row) -> dict[int, list[bool]]:
    """Stack the dots of about one instant, with crosses on top."""
    counts = Counter((round(at / COLUMN), cross) for at, cross in row.dots if at <= SECONDS)
    columns: dict[int, list[bool]] = {}
    for (column, cross), count in sorted(counts.items()):
        columns.setdefault(column, []).extend([cross] * count)
    return columns


def strip(
    row: Row, columns: dict[int, list[bool]], top: float, base: float, palette: Palette
) -> Iterator[str]:
    """Yield the elements of a row."""
    yield text(MARGIN, top + 10, row.title, palette.text, 'font-weight="600"')
    yield text(WIDTH - MARGIN, top + 10, row.note, palette.text, 'text-anchor="end"')
    for second in range(int(SECONDS) + 1):
        x = place(second)
        yield f'<path d="M{x:g} {top + TITLE - 4:g}V{base:g}" stroke="{palette.faint}"/>'
    yield f'<path d="M{place(0):g} {base:g}H{place(SECONDS):g}" stroke="{palette.faint}"/>'
    for column, stack in columns.items():
        x = place(column * COLUMN)
        for level, cross in enumerate(stack):
            y = base - PITCH * (level + 0.5)
            if cross:  # a shape, so that colour is not needed
                yield (
                    f'<path d="M{x - DOT:.4g} {y - DOT:.4g}l{2 * DOT:g} {2 * DOT:g}m0 {-2 * DOT:g}'
                    f'l{-2 * DOT:g} {2 * DOT:g}" stroke="{palette.cross}" stroke-width="1.6"/>'
                )
            else:
                yield f'<circle cx="{x:.4g}" cy="{y:.4g}" r="{DOT:g}" fill="{palette.dot}"/>'


def place(second: float) -> float:
    """Return the x of an instant."""
    return MARGIN + 4 + (WIDTH - 2 * MARGIN - 8) * second / SECONDS


def text(x: float, y: float, label: str, colour: str, more: str) -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" {more}>{escape(label)}</text>'


def pictures() -> dict[str, str]:
    """Return all pictures, by the names of their files."""
    drawn = {
        "algorithms": (
            list(rows_of_algorithms()),
            "What each algorithm admits of the same requests",
        ),
        "crawl": (list(rows_of_crawl()), "What a server that admits 10 a second sees"),
    }
    return {
        f"{name}-{shade}.svg": picture(rows, caption, palette)
        for name, (rows, caption) in drawn.items()
        for shade, palette in PALETTES.items()
    }


def main() -> None:
    """Write all pictures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
