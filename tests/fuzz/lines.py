"""Reads lists of URLs from a fuzzer: `python -m tests.fuzz.lines tests/fuzz/corpus/lines`.

Needs atheris and takes libFuzzer's options, as `tests.fuzz.headers` does.
"""

import importlib
import io
import sys
from typing import Any

atheris: Any = importlib.import_module("atheris")
with atheris.instrument_imports(
    include=["aiothrottle.cli.fetch", "aiothrottle.cli.addresses", "aiothrottle.cli.output", "yarl"]
):
    from aiothrottle.cli.addresses import read_address
    from aiothrottle.cli.fetch.lines import Line, Source, split
    from aiothrottle.cli.fetch.results import file_name
    from aiothrottle.cli.output import printable

LONGEST = 64


def lines_of(content: bytes, size: int) -> list[Line]:
    """Cut the content into lines, so many bytes at a time."""
    stream = io.BytesIO(content)

    def read_some(_: int) -> bytes:
        return stream.read(size)

    return [line for lines in split(Source("list", read_some), LONGEST) for line in lines]


def read(data: bytes) -> None:
    """Check that lines do not depend on the chunks, and that each is an address or an error."""
    size, content = 1 + (data[0] if data else 0), data[1:]
    lines = lines_of(content, size)
    assert lines == lines_of(content, 1 + len(content))
    assert sum(line.size for line in lines) == len(content)
    for line in lines:
        assert len(line.text) <= LONGEST + 1
        address = read_address(line.text)
        if address is None:
            continue
        assert printable(address.shown).isprintable()
        assert (address.url is None) == bool(address.problem)
        if address.url is not None:
            assert address.url.host
            name = file_name(address.url, "text/html")
            assert "/" not in name
            assert name.strip(".")
            assert name.isprintable()


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
