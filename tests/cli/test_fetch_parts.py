"""The parts of `aiothrottle fetch`, without a network: lines, addresses, names, records."""

import asyncio
import gzip
import io
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from aiothrottle.cli.fetch.reading.addresses import LONGEST, read_address
from aiothrottle.cli.fetch.reading.gunzip import decompressed
from aiothrottle.cli.fetch.reading.jobs import Request
from aiothrottle.cli.fetch.reading.lines import Line, Lines, Source, Splitter
from aiothrottle.cli.fetch.results.folder import Folder, file_name
from aiothrottle.cli.fetch.results.output import Done, Output, OutputError, open_output
from aiothrottle.cli.fetch.results.progress import Meter, Progress
from aiothrottle.cli.fetch.results.record import Record, described
from aiothrottle.cli.fetch.results.tally import Tally
from aiothrottle.cli.fetch.sending.redirects import redirected
from aiothrottle.cli.terminal import printable, without_credentials
from aiothrottle.rate import Rate

# ---- lines -----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7), st.integers(0, 12))
def test_lines_do_not_depend_on_chunks(lines: list[bytes], chunk: int, longest: int) -> None:
    content = b"\n".join(lines)
    splitter = Splitter("a list", longest)
    found = [
        line
        for at in range(0, len(content), chunk)
        for line in splitter.feed(content[at : at + chunk])
    ]
    found += splitter.feed(b"")
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    expected = [
        line.removeprefix(b"\xef\xbb\xbf") if number == 0 and len(line) <= longest else line
        for number, line in enumerate(expected)
    ]
    assert [line.text[:longest] for line in found] == [line[:longest] for line in expected]
    assert [len(line.text) > longest for line in found] == [
        len(line) > longest for line in expected
    ]
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert sum(line.size for line in found) == len(content)


def test_long_line_is_cut_off() -> None:
    splitter = Splitter("a list", 10)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 1000)) == []
        assert len(splitter._rest) <= 11 + 3
    (line, after) = splitter.feed(b"\nafter\n")
    assert (len(line.text), line.size) == (11, 1_000_001)
    assert after.text == b"after"


# ---- gzip ------------------------------------------------------------------------------------


def unpacked(packed: bytes, step: int = 1 << 16) -> bytes:
    source = io.BytesIO(packed)
    read = decompressed("list.gz", lambda size: source.read(min(size, step)))
    chunks = list(iter(lambda: read(100), b""))
    assert all(len(chunk) <= 100 for chunk in chunks), "a small file may unpack to gigabytes"
    return b"".join(chunks)


@given(st.lists(st.binary(max_size=300)), st.integers(1, 50), st.integers(0, 20))
def test_gzip_is_unpacked_whatever_its_members(members: list[bytes], step: int, zeros: int) -> None:
    packed = b"".join(map(gzip.compress, members)) + b"\0" * zeros
    assert unpacked(packed, step) == b"".join(members)


@pytest.mark.parametrize(("few", "ahead"), [(2, 5), (9, 9)])
async def test_long_lines_are_taken_one_by_one(few: int, ahead: int) -> None:
    read = io.BytesIO((b"x" * 999 + b"\n") * 50).read
    lines = Lines([Source("list", read)], 1 << 16, few=few, most=5000)
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
    lines.close()
    ends.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert len(taken) <= ahead + 3


def test_cut_or_damaged_gzip_is_an_error() -> None:
    packed = gzip.compress(b"http://a/\n" * 1000)
    assert unpacked(packed) == b"http://a/\n" * 1000
    for end in range(1, len(packed)):
        with pytest.raises(OSError, match=r"list\.gz is cut off: the end of its gzip is missing"):
            unpacked(packed[:end])
    for damaged in (b"http://a/\n", packed[:-8] + bytes(8), packed + b"http://a/\n"):
        with pytest.raises(OSError, match=r"list\.gz is damaged, or is no gzip"):
            unpacked(damaged)


# ---- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [b"", b"  \t ", b"# https://example.org/", b"\r"])
def test_blank_lines_and_comments_are_skipped(line: bytes) -> None:
    assert read_address(line) is None


@pytest.mark.parametrize("line", [b" https://example.org/a ", b"HTTPS://example.org/a\r"])
def test_url_is_read(line: bytes) -> None:
    address = read_address(line)
    assert address is not None
    assert address.url == URL("https://example.org/a")
    assert address.problem is None


@pytest.mark.parametrize(
    ("line", "url"),
    [
        (b"example.org", "http://example.org/"),
        (b"localhost:8080/a?b=c", "http://localhost:8080/a?b=c"),
        (b"[::1]:8080", "http://[::1]:8080/"),
        (b"example.org/@me", "http://example.org/@me"),
        (b"example.org?a", "http://example.org/?a"),
        (b"https://example.org/a b?c d", "https://example.org/a%20b?c%20d"),
    ],
)
def test_missing_scheme_and_spaces_are_read_as_curl_does(line: bytes, url: str) -> None:
    address = read_address(line)
    assert address is not None
    assert (address.url, address.shown) == (URL(url), line.decode())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no url", "does not begin with http"),
        (b"me:secret@example.org", "does not begin with http"),
        (b"https:/example.org", "does not begin with http"),
        (b"mailto:me", "does not begin with http"),
        (b"example.org:port/", "does not begin with http"),
        (b"http://example .org/", "a space is in its host"),
        (b"http://example.org:80 /", "a space is in its host"),
        (b"ftp://example.org/", "does not begin with http"),
        (b"http://", "names no host"),
        (b"http:///path", "names no host"),
        (b"http://example.org:port/", "is no URL"),
        (b"http://[::1/", "is no URL"),
        (b"http://me:[::1]:808.@", "is no URL"),  # found by tests/fuzz_lines.py
        (b"http://xn--le99999999999999999es/", "is no URL: its host cannot be read"),  # so was this
        (b"http://example.org/a\tb", "a tab or a control character"),
        (b"http://example.org/\x1b[2J", "a tab or a control character"),
        (b"http://example.org/\xff", "is not in UTF-8"),
        (b"http://example.org/" + b"x" * LONGEST, f"is longer than {LONGEST} bytes"),
    ],
)
def test_invalid_url_gives_its_problem(line: bytes, problem: str) -> None:
    address = read_address(line)
    assert address is not None
    assert address.url is None
    assert problem in (address.problem or "")
    assert len(address.shown) < 300


@pytest.mark.parametrize(
    "line",
    [
        b"https://me:secret@example.org/",
        b"https://me:secret@example.org/@you?to=a@b",
        b"https://me:secret@[::1/",
        b"https://me:sec/ret@example .org/",
        b"https://me:sec/ret@example.org/",
        b"https://secret@example.org:port/",
        b"me:secret@example.org",
        b"secret@example.org",
        b"me:secret@example.org/a me:secret@example.org/b",
        b"https:/me:secret@example.org",
        b"https:me:secret@example.org",
        b"ftp://me:secret@example.org/",
        b"me:secret" + b"x" * 300 + b"@example.org",
        b"https://me:secret" + b"x" * 300 + b"@example .org",
        b"me:secret\xff@example.org",
    ],
)
def test_no_password_is_shown(line: bytes) -> None:
    address = read_address(line)
    assert address is not None
    assert "example" in address.shown or "[::1" in address.shown, "what it is about can be seen"
    assert "ecret" not in address.shown.replace("sec/ret", "secret")
    assert "secret" not in (address.problem or "")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"example.org", "example.org"),
        (b"me:secret@example.org/a", "***@example.org/a"),
        (b"ftp://me:secret@example.org/", "ftp://***@example.org/"),
        (b"x " * 101, "x " * 100 + "\u2026"),
        (b"x " * 100, "x " * 99 + "x"),
    ],
)
def test_line_that_is_no_url_is_shown_redacted(line: bytes, shown: str) -> None:
    address = read_address(line)
    assert address is not None
    assert address.shown == shown


def test_no_error_shows_a_password() -> None:
    assert described(ValueError("http://me:secret@a/ is bad")) == "http://***@a/ is bad"
    assert described(ValueError()) == "ValueError"


def test_at_sign_in_a_path_stays() -> None:
    assert without_credentials("https://example.org/@you") == "https://example.org/@you"


@given(st.text())
def test_printable_text_cannot_move_the_cursor(text: str) -> None:
    assert printable(text).isprintable()


# ---- records ---------------------------------------------------------------------------------


def test_record_is_a_line_of_json() -> None:
    record = Record(url="http://a/", status=200, body=b"caf\xc3\xa9", attempts=2, waited=0.12345)
    assert json.loads(record.line()) == {
        "url": "http://a/",
        "status": 200,
        "body": "café",
        "attempts": 2,
        "waited": 0.123,
        "error": None,
    }


def test_full_record_is_a_line_of_json() -> None:
    fields = {
        "url": 'http://a/"\\\n\x1b\u00e9\ud800',
        "status": None,
        "final_url": 'http://b/"',
        "headers": {"x": 'a "b"'},
        "file": 'a"b',
        "attempts": 0,
        "waited": 7654321.0,
        "error": 'no "answer"\n',
    }
    line = Record(**fields).line()  # type: ignore[arg-type]
    assert list(json.loads(line).items()) == list(fields.items())
    assert line[:-1].decode("ascii").isprintable()


@given(st.binary(), st.sampled_from([None, "utf-8", "latin-1", "no-such-charset", "utf-16"]))
@example(b"\x7f\x1b\xc2\x9b", None)
def test_record_with_any_body_is_one_ascii_line(body: bytes, charset: str | None) -> None:
    line = Record(url="http://a/", status=200, body=body, charset=charset).line()
    assert line.count(b"\n") == 1
    assert line[:-1].decode("ascii").isprintable()
    assert set(json.loads(line)) & {"body", "body_base64"}


def test_binary_body_loses_no_byte() -> None:
    assert json.loads(Record(url="", body=b"\xff\x00").line())["body_base64"] == "/wA="


@pytest.mark.parametrize(
    ("record", "failed"),
    [
        (Record(url="", status=200), False),
        (Record(url="", status=304), False),
        (Record(url="", status=404), True),
        (Record(url="", status=200, error="half of it"), True),
        (Record(url=""), True),
    ],
)
def test_which_records_are_failures(record: Record, *, failed: bool) -> None:
    assert record.failed is failed


# ---- the output ------------------------------------------------------------------------------


def written(*urls: str) -> bytes:
    return b"".join(Record(url=url, status=200).line() for url in urls)


def reopened(path: Path) -> Done:
    output = open_output(path, resume=True)
    output.close()
    return output.done


@given(st.data())
def test_truncated_last_line_is_removed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "out.jsonl"
    whole = written("http://a/1", "http://a/2")
    torn = written("http://a/3")
    path.write_bytes(whole + torn[: data.draw(st.integers(0, len(torn) - 1))])
    done = reopened(path)
    assert path.read_bytes() == whole
    assert [done.take(f"http://a/{n}") for n in (1, 2, 3)] == [True, True, False]


def test_url_twice_in_the_output_is_skipped_twice() -> None:
    done = Done(["a", "a", "b"])
    assert len(done) == 3
    assert [done.take("a") for _ in range(3)] == [True, True, False]
    assert [done.take("b"), done.take("b"), done.take("a")] == [True, False, False]


@pytest.mark.parametrize(
    "content",
    [
        b"My diary\n",
        b"My diary",
        written("http://a/") + b"not json\n" + written("http://b/"),
        written("http://a/") + b"notes",
        b'{"name": 1}\n',
        b"[1]\n",
        b'{"url": 1}\n',
    ],
)
def test_file_with_other_data_is_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "diary"
    path.write_bytes(content)
    with pytest.raises(OutputError, match="no record of fetch"):
        open_output(path, resume=True)
    assert path.read_bytes() == content


def test_output_that_is_not_empty_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(written("http://a/"))
    with pytest.raises(OutputError, match="not empty: continue it with --resume"):
        open_output(path, resume=False)
    assert path.read_bytes() == written("http://a/")


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    first = open_output(tmp_path / "out.jsonl", resume=False)
    with pytest.raises(OutputError, match="another aiothrottle writes to"):
        open_output(tmp_path / "out.jsonl", resume=True)
    first.close()
    open_output(tmp_path / "out.jsonl", resume=True).close()


async def test_full_disk_is_an_output_error() -> None:
    output: Output = open_output(Path("/dev/full"), resume=False)
    with pytest.raises(OutputError, match="No space left"):
        await output.write(b"a line\n")
    output.close()


def test_long_line_after_byte_order_mark_stays_long() -> None:
    """Found by tests/fuzz_lines.py: cut in small pieces it was a shorter line, and a URL."""
    splitter = Splitter("a list", 10)
    content = b"\xef\xbb\xbf" + b"x" * 30 + b"\n"
    (line,) = (line for byte in content for line in splitter.feed(bytes([byte])))
    assert (line.text, line.size) == (b"x" * 11, len(content))


# ---- names of files --------------------------------------------------------------------------


@given(st.text(), st.text())
def test_file_name_never_leaves_the_folder(path: str, query: str) -> None:
    name = file_name(URL.build(scheme="http", host="example.org", path=f"/{path}", query=query))
    assert name == Path(name).name
    assert name.isascii()
    assert name.isprintable()
    assert not name.startswith((".", "-"))
    assert len(name) < 130


@pytest.mark.parametrize(
    ("url", "content_type", "name"),
    [
        ("http://example.org/", "text/html", "example.org-*.html"),
        ("http://example.org/a/b.tar.gz", "", "example.org_a_b.tar-*.gz"),
        ("http://example.org/../../etc/passwd", "", "example.org_etc_passwd-*"),
        ("http://example.org/%2e%2e%2f%2e%2e%2fetc", "", "example.org_etc-*"),
        ("http://[::1]/a", "x/y", "1_a-*"),
        ("http://bücher.example/ü", "", "b_cher.example-*"),
    ],
)
def test_file_name_is_readable(url: str, content_type: str, name: str) -> None:
    assert Path(file_name(URL(url), content_type)).match(name)


def test_different_urls_have_different_names() -> None:
    urls = ["http://a/x", "http://a/X", "http://a/x?1", "http://a/x/", "https://a/x"]
    assert len({file_name(URL(url)).lower() for url in urls}) == len(urls)


@pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators there")
async def test_no_body_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    pages = tmp_path / "pages"
    folder = Folder(pages)

    async def body() -> AsyncGenerator[bytes]:
        yield b"body"

    (pages / "a.html").symlink_to(precious)
    name = await folder.keep("a.html", 0, body())
    assert (pages / name).read_bytes() == b"body"
    assert not (pages / name).is_symlink()
    (pages / ".part-0").symlink_to(precious)
    with pytest.raises(OutputError, match="File exists"):
        await folder.keep("b.html", 0, body())
    assert not precious.exists()


# ---- redirects -------------------------------------------------------------------------------

POST = Request(
    "POST",
    URL("http://me:pw@a/x"),
    {"Authorization": "secret", "Cookie": "secret", "Content-Type": "t", "X-Mine": "1"},
    b"data",
)


@pytest.mark.parametrize("status", [200, 304, 404])
def test_other_status_is_no_redirect(status: int) -> None:
    assert redirected(POST, status, "http://b/") is None
    assert redirected(POST, 302, None) is None


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (302, "PUT", "PUT"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
    ],
)
def test_method_changes_as_in_browsers(status: int, method: str, becomes: str) -> None:
    request = redirected(Request(method, URL("http://a/"), {}, b"data"), status, "/y")
    assert request is not None
    assert (request.method, request.url) == (becomes, URL("http://a/y"))
    assert request.data == (None if becomes == "GET" else b"data")


HARMLESS = {"Accept": "a/b", "accept-language": "fi", "Range": "bytes=0-9", "User-Agent": "me"}
PRIVATE = {
    "Authorization": "secret",
    "Cookie": "secret",
    "X-Api-Key": "secret",
    "api-key": "secret",
    "X-Mine": "secret",
    "Host": "secret",
    "If-None-Match": "secret",
    "Content-Type": "secret",
}


@pytest.mark.parametrize(
    "location", ["https://a/y", "http://b/y", "http://a:81/y", "//b/y", "http://me:pw@b/y"]
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_another_origin_gets_harmless_headers_only(location: str, status: int) -> None:
    first = Request("GET", URL("http://you:secret@a/x"), {**PRIVATE, **HARMLESS})
    request = redirected(first, status, location)
    assert request is not None
    assert request.headers == HARMLESS
    assert request.method == "GET"
    assert "secret" not in str(request.url)


@pytest.mark.parametrize("location", ["y", "//a/y", "http://a:80/y", "HTTP://A/y"])
def test_same_origin_gets_all_headers(location: str) -> None:
    first = Request("GET", URL("http://a/x"), {**PRIVATE, **HARMLESS})
    request = redirected(first, 307, location)
    assert request is not None
    assert request.headers == first.headers


@pytest.mark.parametrize(
    ("status", "method"), [(307, "POST"), (308, "POST"), (301, "PUT"), (302, "PATCH")]
)
def test_body_is_not_sent_to_another_origin(status: int, method: str) -> None:
    first = Request(method, URL("http://a/x"), {}, b"secret")
    with pytest.raises(ValueError, match=r"to http://b:81, another origin: the body is not sent"):
        redirected(first, status, "http://me:secret@b:81/y")


@pytest.mark.parametrize(("status", "method"), [(301, "POST"), (302, "POST"), (303, "PUT")])
def test_redirect_without_body_may_change_origin(status: int, method: str) -> None:
    request = redirected(Request(method, URL("http://a/x"), PRIVATE, b"secret"), status, "//b/y")
    assert request == Request("GET", URL("http://b/y"), {})


def test_same_origin_keeps_the_credentials() -> None:
    request = redirected(POST, 307, "y")
    assert request is not None
    assert request.url == URL("http://me:pw@a/y")
    assert request.headers == POST.headers


def test_same_origin_keeps_a_password_without_a_user() -> None:
    request = redirected(POST._replace(url=URL("http://:pw@a/x")), 307, "http://a/y")
    assert request is not None
    assert request.url == URL("http://:pw@a/y")


def test_credentials_of_a_redirect_precede_the_header() -> None:
    request = redirected(POST._replace(url=URL("http://a/x")), 307, "http://you:pw@a/y")
    assert request is not None
    assert request.url == URL("http://you:pw@a/y")
    assert "Authorization" in POST.headers
    assert "Authorization" not in request.headers


@pytest.mark.parametrize("location", ["http://me:[::1]:808.@", "http://xn--le99999999999999999es/"])
def test_unreadable_redirect_is_rejected(location: str) -> None:
    for either in (location, location.removeprefix("http:")):
        with pytest.raises(ValueError, match="its host cannot be read"):
            redirected(POST, 302, either)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://a/", "javascript:1"])
def test_redirect_to_another_scheme_is_rejected(location: str) -> None:
    with pytest.raises(ValueError, match="no HTTP URL"):
        redirected(POST, 302, location)


# ---- progress --------------------------------------------------------------------------------


def test_progress_line_with_every_part() -> None:
    progress = Progress(
        done="500 done",
        failed=2,
        throttled=3,
        fraction=0.25,
        left=30.9,
        rate=480.0,
        limit=Rate(500, 60),
        latency=(0.123, 4.567),
        pauses=(2, 89.1),
    )
    assert progress.line() == (
        "25 %  500 done  2 failed  3 throttled  480 of 500/min  latency p50 120 ms, p95 4.6 s  "
        "2 hosts paused for 1:30  0:30 left"
    )


def test_progress_line_omits_unknown_parts() -> None:
    assert Progress(done="0 done").line() == "0 done  0.0/s"


def metered(limit: Rate | None, *marks: tuple[float, int, float]) -> Meter:
    meter = Meter(limit)
    for mark in marks:
        meter.mark(*mark)
    return meter


def test_rate_is_that_of_the_last_ten_seconds() -> None:
    assert metered(None, (0, 0, 0.0), (100, 70, 0.0), (105, 80, 0.0)).rate == 2.0


def test_time_left_is_estimated_from_the_last_half_minute() -> None:
    assert metered(None, (0, 0, 0.0), (100, 0, 0.5), (110, 0, 0.6)).left == pytest.approx(40.0)
    assert metered(None, (0, 0, 0.5), (10, 0, 0.5)).left is None


@pytest.mark.parametrize("period", [0.25, 1.0, 60.0, 3600.0])
def test_rate_never_exceeds_a_kept_limit(period: float) -> None:
    """The whole limit is used at the beginning of each period, and watched all the time."""
    meter = Meter(Rate(20, period))
    shown: list[float] = []
    for step in range(200):
        now = step * period / 50
        meter.mark(now, 20 * (1 + step // 50), None)
        shown.append(meter.rate)
    assert 15 <= max(shown) <= 20


def test_window_keeps_a_bounded_number_of_values() -> None:
    meter = Meter(Rate(1000, 86400))
    for step in range(86400):
        meter.mark(5.0 * step, step, None)
    assert meter.rate == pytest.approx(86400 / 5, rel=0.01)
    assert len(meter._requests._marks) <= 501


@pytest.mark.parametrize(
    ("seconds", "text"), [(10, "0:10 left"), (9990, "2:46:30 left"), (200_000, "2 d 7 h left")]
)
def test_time_left_is_formatted_as_a_clock(seconds: float, text: str) -> None:
    assert Progress(done="", left=seconds).time_left() == text


def test_latency_percentiles_are_those_of_all_responses() -> None:
    tally = Tally()
    assert tally.latency() is None
    for number in range(1, 5001):
        tally.answered(number / 1000)
    median, most = tally.latency() or (0.0, 0.0)
    assert median == pytest.approx(2.5, rel=0.125)
    assert most == pytest.approx(4.75, rel=0.125)
    assert list(Tally().summary(1.0)) == ["0 URLs in 1.0 s, 0.0 requests/s: 0 fetched, 0 failed."]


def test_summary_adds_up() -> None:
    tally = Tally(requests=7, throttled=2, skipped=4)
    for status in (200, 200, 404, None):
        tally.count(Record(url="", status=status, waited=1.0))
    assert list(tally.summary(2.0)) == [
        "4 URLs in 2.0 s, 3.5 requests/s: 2 fetched, 2 failed, 4 were done before.",
        "7 requests, 2 throttled by the server; a URL waited 1.00 s on average.",
        "By status: 200: 2, 404: 1, none: 1.",
    ]


def test_single_request_has_no_plural() -> None:
    tally = Tally(requests=1)
    tally.count(Record(url="", status=200))
    assert list(tally.summary(0.5)) == [
        "1 URL in 0.5 s: 1 fetched, 0 failed.",
        "1 request, 0 throttled by the server; a URL waited 0.00 s on average.",
    ]


@pytest.mark.usefixtures("capfd")  # for which the standard output is a file
def test_only_a_named_file_can_be_resumed(tmp_path: Path) -> None:
    named = open_output(tmp_path / "answers.jsonl", resume=False)
    named.close()
    assert named.can_resume
    assert not open_output(None, resume=False).can_resume
