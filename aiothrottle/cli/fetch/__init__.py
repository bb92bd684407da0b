"""``aiothrottle fetch``: its options, and the run that is made of them.

Invariant: nothing is opened and nothing is sent when an option is rejected.
"""

import argparse
import asyncio
import os
from dataclasses import dataclass

from aiothrottle.cli.fetch.jobs import JsonReader, Reader, UrlReader
from aiothrottle.cli.fetch.limits import Limits
from aiothrottle.cli.fetch.lines import Source, open_source, source_of
from aiothrottle.cli.fetch.report import Messages
from aiothrottle.cli.fetch.requests import Sending, proxies_of
from aiothrottle.cli.fetch.results import OutputError, Saved
from aiothrottle.cli.fetch.run import Plan, run
from aiothrottle.cli.options import Command, argument, fail, option

_DESCRIPTION = """\
Fetch lists of URLs under limits. The output has a line of JSON for each URL:

  {"url": ..., "status": 200, "body": ..., "attempts": 1, "waited": 0.1, "error": null}

A list has one URL on each line; blank lines and lines that begin with # are
skipped. It is read while its URLs are fetched, so it may have any length.
Without any URL or list, it is the standard input, unless that is a terminal.
A URL without http:// or https:// is http. A line that is no URL becomes a
record with an error. Throttled requests (429, or 503 with Retry-After) are
retried when the server allows it.
"""

_EPILOG = """\
exit status:
  0  every URL was fetched, with a status below 400
  1  the run is complete, but some URLs failed: their records have an "error",
     or a status of 400 or more
  2  the arguments are invalid, or input, output or store cannot be opened;
     nothing was sent
  3  the run broke off, since the list, the output (such as a full disk) or
     the store failed
  130, 143  interrupted, by Ctrl-C or SIGTERM
  141  the reader of the output has closed it

Press Ctrl-C once to finish the requests in flight and stop, twice to abort.
After any end, the same command with --resume fetches the rest.

examples:
  aiothrottle fetch https://example.org/ https://example.org/about
  aiothrottle fetch -i urls.txt -o answers.jsonl --rate 10/s --rate 500/min
  aiothrottle fetch -i urls.txt --output-dir pages --per-host 2/s --per-host-concurrency 2
  aiothrottle fetch -i urls.txt -o answers.jsonl --resume
  gzip -dc urls.txt.gz | aiothrottle fetch -o answers.jsonl
  aiothrottle fetch --requests jobs.jsonl -o answers.jsonl --profile openai \\
    --rate requests=500/min --rate tokens=200000/min -H "Authorization: Bearer $KEY"
"""


@dataclass(kw_only=True)
class Lists:
    """The lists of a run."""

    urls: list[str] = argument("URL", "what to fetch; - is standard input", nargs="*")
    input_file: list[str] = option(
        "FILE",
        "a list of URLs; - is standard input; may be repeated (default: standard input, if there "
        "is no URL and it is no terminal)",
        also="-i",
        action="append",
    )
    requests: str | None = option(
        "FILE",
        "a list of requests; - is standard input. Each line is a JSON object with url, and any of "
        "method, headers, json or data, cost, key, id; the records have the id, or else the number "
        "of the line",
    )

    def __post_init__(self) -> None:
        """Reject what one list says, and another too."""
        if [*self.urls, *self.input_file, self.requests].count("-") > 1:
            raise ValueError("- was given more than once, but standard input can be read only once")
        if self.requests is not None and (self.urls or self.input_file):
            raise ValueError("--requests is the whole list: leave out URLs and --input-file")

    def open(self) -> list[Source]:
        """Open all: the arguments in their order, then the files.

        Raises:
            OSError: One cannot be opened.
        """
        urls = [open_source("-") if url == "-" else source_of(url) for url in self.urls]
        files = self.input_file if self.requests is None else [self.requests]
        return [*urls, *map(open_source, files)]


def _run(
    parser: argparse.ArgumentParser,
    lists: Lists,
    limits: Limits,
    sending: Sending,
    saved: Saved,
    messages: Messages,
) -> int:
    if not (lists.urls or lists.input_file or lists.requests):
        if os.isatty(0):
            parser.error("no URLs: give some, or a list by --input-file or on standard input")
        lists.input_file = ["-"]
    try:
        plan = _plan(lists, limits, sending, saved, messages)
    except (OutputError, ValueError) as error:
        fail(parser, str(error))
    except OSError as error:
        fail(parser, f"{error.filename or 'standard input'} cannot be read: {error.strerror}")
    try:
        return asyncio.run(run(plan))
    finally:
        plan.results.output.close()


def _plan(lists: Lists, limits: Limits, sending: Sending, saved: Saved, messages: Messages) -> Plan:
    if any(map(saved.is_output, lists.input_file)):
        raise ValueError("--input-file and --output are the same file: name another output")
    if lists.requests is not None and saved.is_output(lists.requests):
        raise ValueError("--requests and --output are the same file: name another output")
    reader: Reader = UrlReader(sending.method_of_all, sending.headers, sending.data)
    if lists.requests is not None:
        if sending.method is not None or sending.data is not None:
            raise ValueError(
                "each line of --requests has its own method and body: leave out --request and "
                "--data"
            )
        reader = JsonReader(sending.headers, resources=limits.resources, keyed=limits.keyed)
    # All that may be wrong with the options, before a file is opened.
    options, proxies = limits.options(sending.retry), proxies_of(os.environ)
    return Plan(
        sources=lists.open(),
        reader=reader,
        limits=limits,
        options=options,
        sending=sending,
        proxies=proxies,
        results=saved.open(),
        messages=messages,
    )


COMMAND = Command(
    usage="[options] [URL ...]",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    options={
        "": Lists,
        "limits": Limits,
        "requests": Sending,
        "output": Saved,
        "messages": Messages,
    },
    run=_run,
)
