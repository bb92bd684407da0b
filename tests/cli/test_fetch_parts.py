"""The parts of `aiothrottle fetch`, without a network: lines, addresses, names, records."""

import asyncio
import base64
import encodings.aliases
import io
import json
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from aiothrottle import Rate
from aiothrottle.cli.addresses import LONGEST, read_address
from aiothrottle.cli.fetch.crawl import Tally
from aiothrottle.cli.fetch.jobs import Request
from aiothrottle.cli.fetch.lines import Line, Lines, Source, split
from aiothrottle.cli.fetch.requests import redirected
from aiothrottle.cli.fetch.results import Folder, OutputError, Record, file_name, open_output
from aiothrottle.cli.progress import Meter
from tests.support.serving import generated

# ---- lines -----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7), st.integers(0, 12))
@example([b"\xef\xbb\xbf" + b"x" * 30], 1, 10)  # cut in small pieces it was a shorter line
def test_lines_do_not_depend_on_chunks(lines: list[bytes], chunk: int, longest: int) -> None:
    content = b"\n".join(lines)
    stream = io.BytesIO(content)

    def read(_: int) -> bytes:
        return stream.read(chunk)

    found = [line for lines in split(Source("a list", read), longest) for line in lines]
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    expected[:1] = [line.removeprefix(b"\xef\xbb\xbf") for line in expected[:1]]
    assert [line.text[:longest] for line in found] == [line[:longest] for line in expected]
    too_long = [len(line) > longest for line in expected]
    assert [len(line.text) > longest for line in found] == too_long
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert sum(line.size for line in found) == len(content)


@pytest.mark.parametrize(("few", "ahead"), [(2, 5), (9, 9)])
async def test_long_lines_are_taken_one_by_one(few: int, ahead: int) -> None:
    source = io.BytesIO((b"x" * 999 + b"\n") * 500)
    lines = Lines([Source("list", source.read)], 1 << 16, few=few, most=5000)
    taken: list[Line] = []
    ends = asyncio.Event()

    async def take() -> None:
        async for line in lines:
            taken.append(line)
            await ends.wait()

    tasks = [asyncio.create_task(take()) for _ in range(20)]
    for count in range(ahead, ahead + 3):
        while len(taken) < count:  # noqa: ASYNC110 - the reader is a thread
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(taken) == count
        lines.finish(taken[-1])
    assert source.tell() <= 3 * 65536, "one chunk is in use, and a few are read ahead"
    lines.close()
    ends.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert len(taken) <= ahead + 3


# ---- addresses -------------------------------------------------------------------------------

# Each line with its URL. The others are no address, or have a problem.
URLS = {
    b" https://example.org/a ": "https://example.org/a",
    b"HTTPS://example.org/a\r": "https://example.org/a",
    b"example.org": "http://example.org/",
    b"[::1]:8080": "http://[::1]:8080/",
    b"example.org/@me": "http://example.org/@me",
    b"example.org?a": "http://example.org/?a",
    b"https://example.org/a b?c d": "https://example.org/a%20b?c%20d",
    # What is encoded stays as it is: a signature may be of it.
    b"EXAMPLE.org/%7e%2F/%40?key=%2F%3A&sign=a%2B%3d": (
        "http://example.org/%7e%2F/%40?key=%2F%3A&sign=a%2B%3d"
    ),
    b"example.org?key=%2F": "http://example.org/?key=%2F",
    b"example.org/a/../%7e": "http://example.org/%7e",
}
PROBLEMS = {
    **dict.fromkeys(
        [b"no url", b"me:secret@example.org", b"mailto:me", b"ftp://example.org/"],
        "does not begin with http",
    ),
    b"http://example .org/": "a space is in its host",
    b"http://example.org:80 /": "a space is in its host",
    b"http://": "names no host",
    b"http://example.org:port/": "is no URL",
    b"http://[::1/": "is no URL",
    b"http://me:[::1]:808.@": "is no URL",  # found by tests/fuzz/lines.py
    b"http://xn--le99999999999999999es/": "is no URL: its host cannot be read",  # so were these
    b"http://[::1X]:8080/": "is no URL",
    b"http://example.org/a\tb": "a tab or a control character",
    b"http://example.org/\x1b[2J": "a tab or a control character",
    b"http://example.org/\xff": "is not in UTF-8",
    b"http://example.org/" + b"x" * LONGEST: f"is longer than {LONGEST} bytes",
}


def test_line_is_a_url_or_has_a_problem() -> None:
    for line in (b"", b"  \t ", b"# https://example.org/", b"\r"):
        assert read_address(line) is None
    for line in (*URLS, *PROBLEMS):
        address = read_address(line)
        assert address is not None, line
        assert len(address.shown) < 300
        assert address.url == (URL(URLS[line], encoded=True) if line in URLS else None), line
        assert (address.problem is None) is (line in URLS)
        assert PROBLEMS.get(line, "") in (address.problem or ""), line


# Each with what is shown of it, or the end of that.
SECRETS = {
    b"https://me:secret@example.org/": "https://***@example.org/",
    b"https://me:secret@example.org/@you?to=a@b": "https://***@example.org/@you?to=a@b",
    b"https://me:secret@[::1/": "[::1/",
    b"https://me:sec/ret@example .org/": "example .org/",
    b"https://me:sec/ret@example.org/": "example.org/",
    b"https://secret@example.org:port/": "example.org:port/",
    b"me:secret@example.org": "***@example.org",
    b"secret@example.org": "***@example.org",
    b"me:secret@example.org/a me:secret@example.org/b": "example.org/b",
    b"https:/me:secret@example.org": "example.org",
    b"https:me:secret@example.org": "example.org",
    b"ftp://me:secret@example.org/": "ftp://***@example.org/",
    b"me:secret" + b"x" * 300 + b"@example.org": "example.org",
    b"https://me:secret" + b"x" * 300 + b"@example .org": "example .org",
    b"me:secret\xff@example.org": "example.org",
}


def test_no_password_is_shown() -> None:
    for line, end in SECRETS.items():
        address = read_address(line)
        assert address is not None
        assert address.shown.endswith(end), "what it is about can be seen"
        assert "ecret" not in address.shown.replace("sec/ret", "secret")
        assert "secret" not in (address.problem or "")


# ---- records ---------------------------------------------------------------------------------


@given(
    st.binary(),
    st.sampled_from([None, "utf-8", "latin-1", "no-such-charset", "utf-16"]),
    st.text(st.characters(codec=None)),
)
@example(b"\x7f\x1b\xc2\x9b", None, 'http://a/"\\\n\x1b\u00e9\ud800')
@example(b"\xff\x00", None, "")
@example("café".encode(), None, "")
def test_any_record_is_one_ascii_line(body: bytes, charset: str | None, text: str) -> None:
    record = Record(url=text, body=body, charset=charset, attempts=3, waited=7654321.12345)
    record.final_url = record.file = record.error = text
    record.headers = {text: text}
    line = record.line()
    assert line.count(b"\n") == 1
    assert line[:-1].decode("ascii").isprintable()
    fields = json.loads(line)
    shown = fields.pop("body", None)
    if charset is None and shown is not None:
        assert shown.encode() == body
    assert shown is not None or base64.b64decode(fields.pop("body_base64")) == body
    texts = [("url", text), ("status", None), ("final_url", text), ("headers", {text: text})]
    counts = [("attempts", 3), ("waited", 7654321.123), ("error", text)]
    assert [*fields.items()] == [*texts, ("file", text), *counts]


def written(body: bytes, charset: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(Record(url="", body=body, charset=charset).line())
    return found


def test_only_encodings_of_text_are_decoded_and_soon() -> None:
    for charset in ("utf-8", "UTF-16", "latin-1", "cp1252"):
        assert written("é".encode(charset), charset)["body"] == "é"
    for charset in ("gbk", "shift_jis", "koi8-r", "euc-kr"):
        assert written(b"abc", charset)["body"] == "abc"
    for charset in ("idna", "punycode", "unicode_escape", "utf-7", "x\0y"):
        assert base64.b64decode(written(b"abc", charset)["body_base64"]) == b"abc"
    body = b"xn--" + b"a-" * 400_000
    for charset in sorted({*encodings.aliases.aliases.values(), "idna", "punycode"}):
        began = time.process_time()
        found = written(body, charset)
        assert time.process_time() - began < 1.0, charset
        assert found.keys() & {"body", "body_base64"}, charset


@given(st.data())
def test_truncated_last_line_is_removed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "out.jsonl"
    one, two, torn = (Record(url=f"http://a/{n}", status=200).line() for n in (1, 2, 3))
    lost_power = bytes(data.draw(st.integers(0, 3)))
    path.write_bytes(one + two + torn[: data.draw(st.integers(0, len(torn) - 1))] + lost_power)
    output = open_output(path, resume=True)
    output.close()
    assert path.read_bytes() == one + two
    assert [output.take(f"http://a/{n}") for n in (1, 2, 3)] == [True, True, False]


# ---- names of files --------------------------------------------------------------------------


@given(st.text(), st.text())
def test_file_name_never_leaves_the_folder(path: str, query: str) -> None:
    name = file_name(URL.build(scheme="http", host="example.org", path=f"/{path}", query=query))
    assert name == Path(name).name
    assert name.isascii()
    assert name.isprintable()
    assert not name.startswith((".", "-"))
    assert len(name) < 130


def test_file_name_is_readable_and_unique() -> None:
    names = {
        "http://example.org/": "example.org-*.html",
        "http://example.org/a/b.tar.gz": "example.org_a_b.tar-*.gz",
        "http://example.org/../../etc/passwd": "example.org_etc_passwd-*",
        "http://example.org/%2e%2e%2f%2e%2e%2fetc": "example.org_etc-*",
        "http://[::1]/a": "1_a-*",
        "http://bücher.example/ü": "b_cher.example-*",
    }
    for url, name in names.items():
        assert Path(file_name(URL(url), "text/html")).match(name)
    urls = ["http://a/x", "http://a/X", "http://a/x?1", "http://a/x/", "https://a/x"]
    assert len({file_name(URL(url)).lower() for url in urls}) == len(urls)


@pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators there")
async def test_no_body_is_written_through_a_link(tmp_path: Path) -> None:
    precious, pages = tmp_path / "precious", tmp_path / "pages"
    folder = Folder(pages)

    (pages / "a.html").symlink_to(precious)
    name = await folder.keep("a.html", 0, generated(b"body"))
    assert (pages / name).read_bytes() == b"body"
    assert not (pages / name).is_symlink()
    (pages / ".part-0").symlink_to(precious)
    with pytest.raises(OutputError, match="File exists"):
        await folder.keep("b.html", 0, generated(b"body"))
    assert not precious.exists()


async def test_time_per_body_does_not_grow_with_its_namesakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[Path] = []
    exists = Path.exists

    def counted(path: Path) -> bool:
        looked_up.append(path)
        return exists(path)

    monkeypatch.setattr(Path, "exists", counted)

    folder = Folder(tmp_path)
    names = [await folder.keep("a.html", 0, generated(b"body")) for _ in range(50)]
    assert names == ["a.html", *(f"a-{number}.html" for number in range(2, 51))]
    assert len(looked_up) <= 2 * len(names)
    folder.close()
    # A later run overwrites none of them.
    assert await Folder(tmp_path).keep("a.html", 0, generated(b"body")) == "a-51.html"


# ---- redirects -------------------------------------------------------------------------------

HARMLESS = {"Accept": "a/b", "accept-language": "fi", "Range": "bytes=0-9", "User-Agent": "me"}
NAMES = "Authorization Cookie X-Api-Key api-key X-Mine Host If-None-Match Content-Type"
FIRST = Request(
    "GET", URL("http://you:secret@a/x"), {**dict.fromkeys(NAMES.split(), "secret"), **HARMLESS}
)


def test_method_changes_as_in_browsers() -> None:
    for status, method, becomes in [
        *((status, "GET", None) for status in (200, 304, 404)),
        *((status, "POST", "GET") for status in (301, 302, 303)),
        *((303, "PUT", "GET"), (303, "HEAD", "HEAD"), (302, "PUT", "PUT")),
        *((307, "POST", "POST"), (308, "POST", "POST")),
    ]:
        request = Request(method, URL("http://a/"), {}, b"data")
        data = None if becomes == "GET" else b"data"
        expected = becomes and Request(becomes, URL("http://a/y"), {}, data)
        assert redirected(request, status, "/y") == expected
        assert redirected(request, status, None) is None


def test_another_origin_gets_harmless_headers_and_no_body() -> None:
    for location in ("https://a/y", "http://b/y", "http://a:81/y", "//b/y", "http://me:pw@b/y"):
        for status in (301, 302, 303, 307, 308):
            request = redirected(FIRST, status, location)
            assert request is not None
            assert (request.method, request.headers) == ("GET", HARMLESS)
            assert "secret" not in str(request.url)
    for status, method in ((307, "POST"), (308, "POST"), (301, "PUT"), (302, "PATCH")):
        first = Request(method, URL("http://a/x"), {}, b"secret")
        with pytest.raises(ValueError, match=r": another origin, http://b:81, gets no body"):
            redirected(first, status, "http://me:secret@b:81/y")


def test_same_origin_gets_all_headers_and_credentials() -> None:
    for location in ("y", "//a/y", "http://a:80/y", "HTTP://A/y"):
        for credentials in ("me:pw@", ":pw@", ""):
            first = FIRST._replace(url=URL(f"http://{credentials}a/x"))
            request = redirected(first, 307, location)
            assert request is not None
            assert request.headers == first.headers
            assert str(request.url) == f"http://{credentials}a/y"
    # Those of the location precede the header.
    request = redirected(FIRST._replace(url=URL("http://a/x")), 307, "http://you:pw@a/y")
    assert request is not None
    assert (request.url, "Authorization" in request.headers) == (URL("http://you:pw@a/y"), False)


def test_bytes_of_a_location_that_are_no_utf_8_are_encoded() -> None:
    location = b"/caf\xe9?\xff=\xc3\xbc".decode("utf-8", "surrogateescape")  # as aiohttp does
    request = redirected(FIRST, 302, location)
    assert request is not None
    assert str(request.url).endswith("/caf%E9?%FF=%C3%BC")


def test_redirect_to_no_http_url_is_rejected() -> None:
    unreadable = ("//me:[::1]:808.@", "//xn--le99999999999999999es/")
    problems = {it: "its host cannot be read" for at in unreadable for it in (at, f"http:{at}")}
    others = ("file:///etc/passwd", "ftp://a/", "javascript:1")
    for location, problem in (problems | dict.fromkeys(others, "no HTTP URL")).items():
        with pytest.raises(ValueError, match=problem):
            redirected(FIRST, 302, location)


# ---- progress --------------------------------------------------------------------------------


def test_progress_has_every_known_part() -> None:
    meter = Meter(Rate(500, 60))
    for mark in ((0, 0, 0.0), (30, 480, 0.25)):
        meter.mark(*mark)
    parts = meter.parts("500 done", 2, 3, "latency p50 120 ms", "2 hosts paused for 9 s")
    assert [text for text, _ in parts] == [
        *("500 done", "2 failed", "3 throttled", "480 of 500/min", "latency p50 120 ms"),
        "2 hosts paused for 9 s",
    ]
    assert meter.left == "1 min 30 s left"
    assert Meter().parts("0 done", 0, 0) == [("0 done", "bold"), ("0.0/s", "")]
    for seconds, text in {
        10: "10 s left",
        9960: "2 h 46 min left",
        200_000: "2 d 8 h left",
    }.items():
        meter = Meter()
        for mark in ((0, 0, 0.0), (16, 0, 16 / (seconds + 16.5))):
            meter.mark(*mark)
        assert meter.left == text


def test_rate_time_left_and_latency_are_current() -> None:
    for marks, rate, left in (
        ([(0, 0, 0.0), (100, 70, 0.0), (105, 80, 0.0)], 2.0, ""),
        ([(0, 0, 0.0), (100, 0, 0.5), (110, 0, 0.5999)], 0.0, "40 s left"),
        ([(0, 0, 0.5), (10, 0, 0.5)], 0.0, ""),
    ):
        meter = Meter()
        for mark in marks:
            meter.mark(*mark)
        assert (meter.rate, meter.left) == (rate, left)
    tally = Tally()
    assert not tally.latency()
    for number in range(1, 5001):
        tally.answered(number / 1000)
    assert tally.latency() == "p50 2.8 s, p95 4.5 s"  # off by an eighth at the most


@pytest.mark.parametrize("period", [0.25, 1.0, 60.0, 3600.0])
def test_rate_never_exceeds_a_kept_limit(period: float) -> None:
    """The whole limit is used at the beginning of each period, and watched all the time."""
    meter = Meter(Rate(20, period))
    shown: list[float] = []
    for step in range(200):
        meter.mark(step * period / 50, 20 * (1 + step // 50), None)
        shown.append(meter.rate)
    assert 15 <= max(shown) <= 20
