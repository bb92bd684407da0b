"""``aiothrottle fetch``: its arguments, and the settings of the run made from them."""

import argparse
import asyncio
import base64
import io
import os
import stat
import sys
from collections.abc import Mapping
from functools import partial

from aiothrottle._http.options import Options
from aiothrottle.algorithms import TokenBucket
from aiothrottle.cli.fetch.arguments import add_arguments
from aiothrottle.cli.fetch.checks import check, fail
from aiothrottle.cli.fetch.reading.gunzip import decompressed
from aiothrottle.cli.fetch.reading.jobs import Reader, UrlReader
from aiothrottle.cli.fetch.reading.json_lines import JsonReader
from aiothrottle.cli.fetch.reading.lines import Source
from aiothrottle.cli.fetch.results.folder import Folder
from aiothrottle.cli.fetch.results.output import OutputError, open_output
from aiothrottle.cli.fetch.run import Settings, run
from aiothrottle.cli.fetch.sending.cookies import Cookie
from aiothrottle.cli.fetch.sending.limits import Limits
from aiothrottle.cli.fetch.sending.profiles import options_of
from aiothrottle.cli.fetch.sending.proxies import choose_proxies
from aiothrottle.cli.fetch.sending.rates import NamedRate, by_resource
from aiothrottle.cli.fetch.sending.worker import Rules
from aiothrottle.cli.suggestion import usual_guard
from aiothrottle.retry import Retry

__all__ = ["execute", "fill"]

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
  aiothrottle fetch -i urls.txt.gz -o answers.jsonl --resume
  grep /news/ urls.txt | aiothrottle fetch -o answers.jsonl
  aiothrottle fetch --requests jobs.jsonl -o answers.jsonl --profile openai \\
    --rate requests=500/min --rate tokens=200000/min -H "Authorization: Bearer $KEY"
"""

# The transient statuses of curl, and those of proxies before a server that fails (520 to 530). Of
# the others a later attempt would have the same.
_RETRIED = frozenset({408, 429, *range(500, 600)} - {501, 505, 510, 511})
_UNSAFE = ("POST", "PATCH")
# A whole record is kept in memory.
_LONGEST_BODY = 16 << 20


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and their help."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "aiothrottle fetch [options] [URL ...]"
    add_arguments(parser)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    check(parser, options)
    try:
        settings = _settings(options)
    except (OutputError, ValueError) as error:
        fail(parser, str(error))
    except OSError as error:
        fail(parser, f"{error.filename or 'standard input'} cannot be read: {error.strerror}")
    try:
        return asyncio.run(run(settings, sys.stderr))
    finally:
        settings.output.close()


def _settings(options: argparse.Namespace) -> Settings:
    limits = _limits(options)
    retry = _retry(options)
    # All that may be wrong with the options, before a file is opened.
    proxies = choose_proxies(options.proxy, options.noproxy, os.environ)
    reader = _reader(options, limits)
    if options.profile is None:
        sending = Options(retry=retry)
    else:
        sending = options_of(options.profile, limits.resources, retry)
    sources = _sources(options)
    folder = None if options.output_dir is None else Folder(options.output_dir)
    index = options.output_dir / "index.jsonl" if options.output_dir else None
    # Another user may be able to put a link into the folder. The path of --output is explicit.
    output = open_output(
        options.output or index, resume=options.resume, follow=options.output is not None
    )
    if folder is not None:
        folder.tidy()
    longest = options.max_filesize or (_LONGEST_BODY if folder is None else None)
    return Settings(
        rules=Rules(
            proxies=proxies,
            redirects=options.max_redirs if options.location else 0,
            kept_headers=frozenset(options.save_header),
            longest_body=longest,
        ),
        sources=sources,
        reader=reader,
        limits=limits,
        options=sending,
        user_agent=options.user_agent,
        max_time=options.max_time or None,
        connect_timeout=options.connect_timeout or None,
        tls=False if options.insecure else options.cacert or True,
        cookies=_cookies(options),
        output=output,
        folder=folder,
        quiet=options.quiet,
        verbose=options.verbose,
        dashboard=options.dashboard,
    )


def _retry(options: argparse.Namespace) -> Retry:
    usual = Retry()
    return Retry(
        attempts=options.retries + 1,
        statuses=_RETRIED,
        methods=[*usual.methods, *(_UNSAFE if options.retry_all_methods else ())],
        max_retry_after=options.max_retry_after,
    )


def _limits(options: argparse.Namespace) -> Limits:
    """Return the limits.

    Raises:
        ValueError: Some rates name a resource, and others do not.
    """
    rates: list[NamedRate] = options.rate or []
    per_host: list[NamedRate] = options.per_host or []
    all_rates = by_resource("--rate", rates)
    host_rates = by_resource("--per-host", per_host)
    if isinstance(all_rates, Mapping) and host_rates and not isinstance(host_rates, Mapping):
        raise ValueError(
            "the rates of --rate name resources, and those of --per-host do not: name them too, "
            "such as --per-host requests=5/s"
        )
    guard = options.guard
    return Limits(
        rates=all_rates,
        concurrency=options.concurrency,
        per_host=host_rates,
        per_host_concurrency=options.per_host_concurrency,
        burst=options.burst,
        guard=usual_guard(each.rate for each in [*rates, *per_host]) if guard is None else guard,
        store=options.store,
        key=options.store_key or "fetch",
        # The budgets of language models trickle back all the time.
        algorithm=None if options.profile is None else TokenBucket,
    )


def _sources(options: argparse.Namespace) -> list[Source]:
    """Return the sources: the arguments in their order, then the file."""
    sources: list[Source] = []
    for url in options.urls:
        if url == "-":
            sources.append(_file("-"))
        else:
            # Restores bytes that Python could not decode.
            line = os.fsencode(url) + b"\n"
            sources.append(Source("", io.BytesIO(line).read, len(line)))
    lists = (options.input_file, options.requests)
    return [*sources, *(_file(name) for name in lists if name is not None)]


def _reader(options: argparse.Namespace, limits: Limits) -> Reader:
    headers = _headers(options)
    if options.requests is not None:
        return JsonReader(headers, resources=limits.resources, keyed=limits.keyed)
    return UrlReader(_chosen_method(options), headers, options.data)


def _file(name: str) -> Source:
    descriptor = 0 if name == "-" else os.open(name, os.O_RDONLY)
    about = os.fstat(descriptor)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(21, "it is a folder", name)
    size = about.st_size if stat.S_ISREG(about.st_mode) else None
    # Unbuffered: a thread that reads would keep a buffer locked when the program ends.
    read = partial(os.read, descriptor)
    if name.endswith(".gz"):
        return Source(name, decompressed(name, read))  # the size of its content is unknown
    return Source("standard input" if name == "-" else name, read, size)


def _chosen_method(options: argparse.Namespace) -> str:
    if options.head:
        return "HEAD"
    if options.method is not None:
        return str(options.method)
    return "GET" if options.data is None else "POST"


def _headers(options: argparse.Namespace) -> dict[str, str]:
    headers = dict(options.header)
    if options.user is not None:
        # Also what Python could not decode.
        headers["Authorization"] = f"Basic {base64.b64encode(os.fsencode(options.user)).decode()}"
    if strings := [cookie for cookie in options.cookie if isinstance(cookie, str)]:
        headers["Cookie"] = "; ".join(strings)
    if options.data is not None and "content-type" not in map(str.lower, headers):
        headers["Content-Type"] = "application/x-www-form-urlencoded"  # as curl does
    return headers


def _cookies(options: argparse.Namespace) -> list[Cookie] | None:
    """Return the cookies of all files; None: without a file no jar is wanted."""
    files: list[list[Cookie]] = [it for it in options.cookie if not isinstance(it, str)]
    return [cookie for file in files for cookie in file] if files else None
