"""What the options of `aiothrottle fetch` may not say together.

Invariant: nothing was opened and nothing was sent when an option is rejected here.
"""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from aiothrottle.cli.fetch.run import Status

__all__ = ["check", "fail"]


def fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """End with an error that the usage would not explain."""
    parser.exit(Status.NOTHING_SENT, f"{parser.prog}: error: {message}\n")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject options that contradict each other, or have no effect.

    Without any list it chooses standard input.

    Raises:
        SystemExit: Some do; the message has been printed.
    """
    _check_sources(parser, options)
    _check_requests(parser, options)
    if options.resume and options.output is None and options.output_dir is None:
        fail(parser, "--resume needs a file to continue: give --output or --output-dir")
    if options.quiet and options.verbose:
        fail(parser, "--quiet and --verbose: give one of them")
    _check_limits(parser, options)
    _check_connection(parser, options)


def _check_sources(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject lists that cannot be read, and choose standard input if there are none."""
    if not options.urls and options.input_file is None and options.requests is None:
        if os.isatty(0):
            parser.error("no URLs: give some, or a list by --input-file or on standard input")
        options.input_file = "-"
    if [*options.urls, options.input_file, options.requests].count("-") > 1:
        fail(parser, "- was given more than once, but standard input can be read only once")
    for option, list_ in (("--input-file", options.input_file), ("--requests", options.requests)):
        if options.output and list_ and _same(options.output, list_):
            fail(parser, f"{option} and --output are the same file: name another output")


def _same(output: Path, list_: str) -> bool:
    try:
        return output.samefile(list_)
    except OSError:  # one of them does not exist
        return False


def _check_requests(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject what a list of requests says itself."""
    if options.requests is None:
        return
    if options.urls or options.input_file is not None:
        fail(parser, "--requests is the whole list: leave out URLs and --input-file")
    if options.head or options.method is not None or options.data is not None:
        fail(
            parser,
            "each line of --requests has its own method and body: "
            "leave out --request, --head and --data",
        )


def _check_limits(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject limits without effect, and impossible combinations."""
    if options.guard is not None and not (options.rate or options.per_host):
        fail(parser, "--guard stretches the period of a rate: give --rate or --per-host")
    if options.burst is not None and not (options.rate or options.per_host):
        fail(parser, "--burst bounds the use of a rate: give --rate or --per-host")
    if options.store is None:
        if options.store_key is not None:
            fail(parser, "--store-key names the limits in a store: give --store")
        return
    if not (options.rate or options.per_host):
        fail(parser, "--store counts a rate: give --rate or --per-host")
    if options.rate and (options.per_host or options.per_host_concurrency):
        fail(
            parser,
            "a store counts either all requests or those of each host: "
            "give either --rate or --per-host",
        )


def _check_connection(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject options that set the same thing twice."""
    if options.head and (options.method is not None or options.data is not None):
        fail(parser, "--head sets the method: leave out --request and --data")
    if options.insecure and options.cacert is not None:
        fail(parser, "--insecure checks no certificate: leave out --cacert")
    given = {name.lower() for name, _ in options.header}
    if options.user is not None and "authorization" in given:
        fail(parser, "--user sets the header Authorization: leave out one of them")
    if options.cookie and "cookie" in given:
        fail(parser, "--cookie sets the header Cookie: leave out one of them")
