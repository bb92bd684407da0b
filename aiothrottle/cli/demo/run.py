"""The demo: its crawls, and their results as a text, a document and a picture."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from aiothrottle._checks import number
from aiothrottle.cli.demo.crawl import BACK_OFF, Run, Terms, compare
from aiothrottle.cli.document import print_document, rate_value
from aiothrottle.cli.picture import Panel, save
from aiothrottle.cli.table import columns_of, fitted, paragraph
from aiothrottle.limiter import RateLimiter

__all__ = ["run_demo"]


def run_demo(
    terms: Terms,
    picture: Path | None = None,
    limiter: RateLimiter | None = None,
    *,
    as_json: bool = False,
) -> int:
    """Crawl three times, print the numbers of the server, and return the exit status.

    Args:
        terms: The limits of the server, and the size of the crawl.
        picture: Where to write a picture of the crawls.
        limiter: Replaces the limiter that keeps to the terms, to test a wrong one.
        as_json: Whether to print one JSON document in place of a text.

    Returns:
        0 if aiothrottle's crawl found every page and no request was throttled, and the picture,
        if any, was written; else 1.
    """
    runs = asyncio.run(_announced(terms, limiter, as_json=as_json))
    complaint = runs[-1].complaint()
    if as_json:
        print_document(_document(terms, runs))
    else:
        _print_table(terms, runs, succeeded=complaint is None)
    if complaint is not None:
        text = f"aiothrottle's crawl failed: {complaint}."
        print(f"\n{paragraph(text, columns_of(sys.stderr))}", file=sys.stderr)
    drawn = picture is None or save(
        [_panel(run) for run in runs],
        f"The server admits {_words(terms)}",
        picture,
        sys.stderr if as_json else sys.stdout,
    )
    return 0 if complaint is None and drawn else 1


async def _announced(terms: Terms, limiter: RateLimiter | None, *, as_json: bool) -> list[Run]:
    if not as_json:
        # Printed inside asyncio.run, where Ctrl-C is a cancellation from the first line on.
        _print_introduction(terms)
    return await compare(terms, limiter)


def _print_introduction(terms: Terms) -> None:
    width = columns_of(sys.stdout)
    for text in (
        f"A server on this machine has {terms.pages} pages that link to each other.",
        f"It admits {_words(terms)}, and rejects the rest with 429.",
        f"A page takes {number(terms.page_time)} s.",
        f"So crawling them all takes at least {terms.least_time(terms.pages):.2f} s.",
        'Each crawler follows the links from "/".',
        f"Those without aiothrottle retry a throttled page after {number(BACK_OFF)} s.",
        f"A crawl that is not complete after {terms.patience:.0f} s is stopped.",
    ):
        print(paragraph(text, width))
    print(flush=True)


def _print_table(terms: Terms, runs: Sequence[Run], *, succeeded: bool) -> None:
    width = columns_of(sys.stdout)
    most = f"most in {number(terms.rate.period)} s"
    head = ("", "pages", "time", "sent", "throttled", most, "most at once", "used")
    limit = ("the limit", "", "", "", "", number(terms.rate.limit), f"{terms.concurrency}", "")
    print("\n".join(fitted([head, *(_row(run) for run in runs), limit], width)))
    print()
    texts = [
        "sent, throttled, most: counted by the server; most includes throttled requests.",
        "used: the used part of the limit, which is the shortest possible time / the time taken.",
        f"aiothrottle added a guard of {number(terms.guard)} s to the period, for network jitter.",
    ]
    if succeeded:
        texts += ["", "aiothrottle's crawl is complete: no request was throttled."]
    print("\n".join(paragraph(text, width) for text in texts), flush=True)


def _document(terms: Terms, runs: Sequence[Run]) -> dict[str, object]:
    return {
        "server": {
            "rate": rate_value(terms.rate),
            "concurrency": terms.concurrency,
            "pages": terms.pages,
        },
        "least_seconds": terms.least_time(terms.pages),
        "guard": terms.guard,
        "crawls": [
            {
                "name": run.name,
                "pages": len(run.found),
                "seconds": run.seconds,
                "sent": run.audit.sent,
                "throttled": run.audit.refused,
                "most_in_period": run.audit.greatest_count(terms.rate.period),
                "most_at_once": run.audit.greatest_concurrency,
                "used": run.share,
            }
            for run in runs
        ],
        "problem": runs[-1].complaint(),
    }


def _words(terms: Terms) -> str:
    period = "second" if terms.rate.period == 1 else f"{number(terms.rate.period)} s"
    requests = "request" if terms.rate.limit == 1 else "requests"
    return f"{number(terms.rate.limit)} {requests} in any {period}, {terms.concurrency} at once"


def _row(run: Run) -> tuple[str, ...]:
    return (
        run.name,
        f"{len(run.found)}",
        f"{run.seconds:.2f} s",
        f"{run.audit.sent}",
        f"{run.audit.refused}",
        f"{run.audit.greatest_count(run.terms.rate.period)}",
        f"{run.audit.greatest_concurrency}",
        f"{run.share:.1%}",
    )


def _panel(run: Run) -> Panel:
    """Return the panel of a crawl in the picture."""
    return Panel(
        f"{run.name}: {len(run.found)} pages in {run.seconds:.2f} s, {run.audit.refused} throttled",
        [(request.arrived_at - run.started_at, request.refused) for request in run.audit.requests],
        run.seconds,
        run.terms.rate,
    )
