"""`aiothrottle fetch` against a server on loopback: the requests, the records, the messages."""

import asyncio
import gzip
import json
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from aiothrottle import RateLimiter
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.sender import Sender
from aiothrottle.cli import main
from aiothrottle.cli.fetch.reading.jobs import UrlReader
from aiothrottle.cli.fetch.reading.lines import Lines, Source
from aiothrottle.cli.fetch.results.output import Done
from aiothrottle.cli.fetch.sending.crawl import Crawl
from aiothrottle.cli.fetch.sending.worker import Rules
from tests.background import background

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def by_url(path: Path) -> dict[str, dict[str, Any]]:
    found = records(path)
    keyed = {record["url"]: record for record in found}
    assert len(keyed) == len(found), "a record is there twice"
    return keyed


def answering(**answers: dict[str, Any] | Callable[[web.Request], web.Response]) -> Handler:
    """Answer a path, "/" being "root", with the entry of that name."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = answers[request.path.strip("/") or "root"]
        return answer(request) if callable(answer) else web.Response(**answer)

    return handle


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


# ---- the output ------------------------------------------------------------------------------


def test_every_url_gets_a_record(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with background() as server:
        urls = [f"{server.url}{n}" for n in range(20)]
        assert main(["fetch", *urls, "-o", str(out)]) == 0
    found = by_url(out)
    assert set(found) == set(urls)
    assert found[urls[0]] == {
        "url": urls[0],
        "status": 200,
        "body": "Here you are.\n",
        "attempts": 1,
        "waited": 0.0,
        "error": None,
    }
    printed, messages = capsys.readouterr()
    assert printed == ""
    assert "20 URLs in" in messages
    assert "20 fetched, 0 failed." in messages


def test_url_may_follow_an_option(out: Path) -> None:
    with background() as server:
        first, second = f"{server.url}a", f"{server.url}b"
        assert main(["fetch", first, "--silent", second, "-o", str(out)]) == 0
    assert set(by_url(out)) == {first, second}


def test_run_continues_after_invalid_lines(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = tmp_path / "urls.txt"
    with background() as server:
        lines = ["# a list", "", str(server.url), "ftp://example.org", "\x1b[2J", "x" * 1_000_000]
        content = "\r\n".join([*lines, f"{server.url}b"]).encode() + b"\nhttp://a/\xe9\n"
        urls.write_bytes(b"\xef\xbb\xbf" + content)
        assert main(["fetch", "-i", str(urls), "-o", str(out)]) == 1
        assert server.audit.sent == 2
    found = records(out)
    assert len(found) == 6
    errors = [record["error"] for record in found if record["error"]]
    assert f"{urls}, line 4: is no URL: it does not begin with http:// or https://" in errors
    assert f"{urls}, line 8: is not in UTF-8" in errors
    messages = capsys.readouterr().err
    assert messages.replace("\n", "").isprintable()
    assert "2 fetched, 4 failed" in messages


def test_error_status_is_a_failure_with_its_body(out: Path) -> None:
    handler = answering(missing={"status": 404, "text": "nothing here"})
    with background(handler=handler) as server:
        assert main(["fetch", f"{server.url}missing", "-o", str(out), "-s"]) == 1
    (record,) = records(out)
    assert (record["status"], record["body"], record["error"]) == (404, "nothing here", None)


def test_refused_connection_fails_only_its_url(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with background() as server:
        unreachable = str(server.url)
    with background() as server:
        secret = unreachable.replace("//", "//me:secret@")
        urls = [secret, "http://no-such-host.invalid/", str(server.url)]
        assert main(["fetch", *urls, "-o", str(out), "--retries", "1"]) == 1
    found = by_url(out)
    record = found[unreachable.replace("//", "//***@")]
    assert (record["status"], record["attempts"]) == (None, 2)
    assert "Cannot connect" in record["error"]
    assert found[str(server.url)]["status"] == 200
    assert "secret" not in out.read_text() + capsys.readouterr().err


def test_throttled_requests_are_retried_and_counted(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with background("5/s", refusal="429-seconds") as server:
        urls = [f"{server.url}{n}" for n in range(8)]
        assert main(["fetch", *urls, "-o", str(out), "--concurrency", "8"]) == 0
        throttled = server.audit.refused
    assert throttled > 0
    found = records(out)
    assert sum(record["attempts"] for record in found) == 8 + throttled
    assert max(record["waited"] for record in found) > 0.5
    assert (
        f"{8 + throttled} requests, {throttled} throttled by the server" in capsys.readouterr().err
    )


def seconds(*arguments: str) -> float:
    """The duration of the command. A busy machine makes it longer, never shorter: so a rate that
    holds shows as a least time, while counts at the server would shift on a busy machine."""
    began = time.perf_counter()
    assert main(["fetch", *arguments]) == 0
    return time.perf_counter() - began


@pytest.mark.parametrize(
    ("rates", "least"),
    [
        (["10/200ms"], 0.4),
        (["10/50ms", "20/500ms"], 0.5),
        (["20/500ms", "10/50ms"], 0.5),
    ],
)
def test_run_keeps_its_rates(rates: list[str], least: float, out: Path) -> None:
    limits = [word for rate in rates for word in ("--rate", rate)]
    with background() as server:
        urls = [f"{server.url}{n}" for n in range(30)]
        assert seconds(*urls, "-o", str(out), *limits) >= least


@pytest.mark.parametrize("limit", ["--rate", "--per-host"])
def test_burst_spreads_the_requests(limit: str, out: Path) -> None:
    with background() as server:
        urls = [f"{server.url}{n}" for n in range(12)]
        # Without it all would be sent at once.
        assert seconds(*urls, "-o", str(out), limit, "50/s", "--burst", "2") >= 10 / 50


def test_slow_host_delays_no_other_host(out: Path) -> None:
    with background() as slow, background() as fast:
        # The first host has a long queue, before the other one has its turn.
        urls = [f"{slow.url}{n}" for n in range(60)] + [f"{fast.url}{n}" for n in range(10)]
        limits = ["--per-host", "20/500ms", "--per-host-concurrency", "2", "--concurrency", "4"]
        assert seconds(*urls, "-o", str(out), *limits) >= 1.0
        assert slow.audit.greatest_concurrency <= 2
        assert fast.audit.requests[-1].arrived_at < slow.audit.requests[-1].arrived_at
    assert len(by_url(out)) == 70


def test_all_hosts_share_the_common_rate(out: Path) -> None:
    with background() as one, background() as other:
        urls = [f"{server.url}{n}" for n in range(8) for server in (one, other)]
        limits = ["--per-host", "100/s", "--rate", "6/300ms"]
        assert seconds(*urls, "-o", str(out), *limits) >= 0.6


def test_request_has_the_given_options(out: Path, tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(request: web.Request) -> web.Response:
        headers = request.headers
        kind = headers.get("Content-Type")
        seen.append([request.method, headers["User-Agent"], headers.get("X-Mine"), kind])
        return web.Response(headers={"X-Answer": "1", "X-Other": "2"})

    body = tmp_path / "body"
    body.write_bytes(b"{}\n")
    with background(handler=answering(root=note)) as server:
        url = str(server.url)
        options = [
            "-A",
            "me",
            "-H",
            "X-Mine: a: b",
            "--save-header",
            "x-answer",
            "-o",
            str(out),
            "-s",
        ]
        assert main(["fetch", url, *options, "-d", f"@{body}", "-X", "put"]) == 0
        assert records(out)[0]["headers"] == {"x-answer": "1"}
        out.unlink()
        assert main(["fetch", url, *options, "-d", "a=1"]) == 0
        out.unlink()
        assert main(["fetch", url, *options, "-I"]) == 0
    form = "application/x-www-form-urlencoded"
    assert seen == [
        ["PUT", "me", "a: b", form],
        ["POST", "me", "a: b", form],
        ["HEAD", "me", "a: b", None],
    ]


def test_each_followed_redirect_takes_a_token(out: Path) -> None:
    handler = answering(
        a={"status": 301, "headers": {"Location": "/b"}},
        b={"status": 302, "headers": {"Location": "c"}},
        c={"text": "there"},
        round={"status": 302, "headers": {"Location": "round"}},
        away={"status": 302, "headers": {"Location": "file:///etc/passwd"}},
    )
    with background(handler=handler) as server:
        urls = [f"{server.url}{path}" for path in ("a", "round", "away")]
        assert main(["fetch", urls[0], "-o", str(out), "-s"]) == 0
        assert records(out)[0]["status"] == 301
        out.unlink()
        options = ["-L", "--max-redirs", "3", "--rate", "4/200ms"]
        began = time.perf_counter()
        assert main(["fetch", *urls, *options, "-o", str(out), "-s"]) == 1
        assert time.perf_counter() - began >= 0.2  # 8 requests of 3 URLs
        found = by_url(out)
        assert found[urls[0]]["final_url"] == f"{server.url}c"
    assert (found[urls[0]]["body"], found[urls[0]]["attempts"]) == ("there", 1)
    assert found[urls[1]]["error"] == "more than 3 redirects"
    assert found[urls[2]]["error"] == "redirected to what is no HTTP URL"


def test_too_long_body_is_a_failure(out: Path) -> None:
    handler = answering(long={"body": b"x" * 2000}, short={"body": b"x" * 1024})
    with background(handler=handler) as server:
        urls = [f"{server.url}long", f"{server.url}short"]
        assert main(["fetch", *urls, "-o", str(out), "-s", "--max-filesize", "1k"]) == 1
    found = by_url(out)
    assert found[urls[0]]["error"] == "the body is longer than 1024 bytes (--max-filesize)"
    assert found[urls[1]]["error"] is None


def test_timeout_is_a_failure(out: Path) -> None:
    with background("1/d", refusal="silence") as server:
        urls = [f"{server.url}{n}" for n in range(2)]
        options = ["--max-time", "0.2", "--concurrency", "1", "--retries", "0", "-s"]
        assert main(["fetch", *urls, *options, "-o", str(out)]) == 1
    assert [record["error"] for record in records(out)] == [None, "no answer in time"]


def test_url_without_scheme_and_with_spaces_is_fetched(out: Path) -> None:
    with background(handler=answering(**{"a b": {"text": "here"}})) as server:
        url = f"{server.url.authority}/a b"
        assert main(["fetch", url, "-o", str(out), "-s"]) == 0
    (record,) = records(out)
    assert (record["url"], record["body"]) == (url, "here")


def test_gzip_list_is_fetched_until_it_is_cut_off(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = tmp_path / "urls.txt.gz"
    with background() as server:
        listed = [f"{server.url}{n}" for n in range(30)]
        packed = gzip.compress("\n".join(listed).encode())
        urls.write_bytes(packed)
        assert main(["fetch", "-i", str(urls), "-o", str(out)]) == 0
        assert set(by_url(out)) == set(listed)
        out.unlink()
        urls.write_bytes(packed[:-5])
        assert main(["fetch", "-i", str(urls), "-o", str(out)]) == 3
    message = f"the list cannot be read: {urls} is cut off: the end of its gzip is missing"
    assert message in capsys.readouterr().err


# ---- retries ---------------------------------------------------------------------------------


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"x" * 50)
    assert request.transport is not None
    request.transport.abort()
    return response


async def too_late(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError("the client has gone")


def failing(status: int) -> Handler:
    async def fail(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    return fail


def in_turn(*handlers: Handler) -> Handler:
    """Answer the first requests by these handlers, and all others by 200."""
    left = list(handlers)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await left.pop(0)(request) if left else web.Response(text="at last")

    return handle


@pytest.mark.parametrize(
    "failure",
    [failing(408), failing(500), failing(522), cut_off, too_late],
    ids=["408", "500", "522", "cut off", "too late"],
)
def test_transient_failure_is_retried(failure: Handler, out: Path) -> None:
    with background(handler=in_turn(failure)) as server:
        options = ["--max-time", "2", "--retry", "1", "-s"]
        assert main(["fetch", str(server.url), *options, "-o", str(out)]) == 0
    (record,) = records(out)
    assert (record["status"], record["body"], record["attempts"]) == (200, "at last", 2)


@pytest.mark.parametrize("status", [400, 404, 501, 505])
def test_permanent_failure_is_not_retried(status: int, out: Path) -> None:
    with background(handler=failing(status)) as server:
        assert main(["fetch", str(server.url), "-o", str(out), "-s"]) == 1
    assert records(out)[0]["attempts"] == 1


def test_all_failures_of_a_url_share_its_retries(out: Path) -> None:
    handlers = [failing(500), cut_off, failing(500), cut_off]
    with background(handler=in_turn(*handlers)) as server:
        assert main(["fetch", str(server.url), "--retry", "2", "-o", str(out), "-s"]) == 1
        assert server.audit.sent == 3
    (record,) = records(out)
    assert (record["status"], record["attempts"]) == (500, 3)


@pytest.mark.parametrize("failure", [failing(500), cut_off], ids=["500", "cut off"])
def test_post_is_retried_only_if_asked(failure: Handler, out: Path) -> None:
    run = ["fetch", "-d", "x", "--retry", "1", "-o", str(out), "-s"]
    with background(handler=in_turn(failure)) as server:
        assert main([*run, str(server.url)]) == 1
    assert records(out)[0]["attempts"] == 1
    out.unlink()
    with background(handler=in_turn(failure)) as server:
        assert main([*run, str(server.url), "--retry-all-methods"]) == 0
    assert records(out)[0]["attempts"] == 2


# ---- a folder of bodies ----------------------------------------------------------------------


def test_bodies_are_files_named_by_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "pages"
    handler = answering(
        root={"body": b"<p>", "content_type": "text/html"},
        data={"body": bytes(range(256)) * 1000},
    )
    with background(handler=handler) as server:
        urls = [str(server.url), f"{server.url}data", f"{server.url}data"]
        assert main(["fetch", *urls, "--output-dir", str(folder), "-s"]) == 0
    index = records(folder / "index.jsonl")
    files = {record["file"] for record in index}
    assert len(files) == 3, "nothing is overwritten"
    assert {path.name for path in folder.iterdir()} == {*files, "index.jsonl"}
    for record in index:
        assert "body" not in record
        content = (folder / record["file"]).read_bytes()
        assert content == (b"<p>" if record["url"] == urls[0] else bytes(range(256)) * 1000)


def test_incomplete_body_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    run = ["fetch", "--output-dir", str(folder), "--resume", "-s"]
    with background(handler=cut_off) as server:
        assert main([*run, str(server.url), "--retry", "1"]) == 1
    (record,) = records(folder / "index.jsonl")
    assert record["error"]
    assert "file" not in record
    assert [path.name for path in folder.iterdir()] == ["index.jsonl"]
    with background(handler=in_turn(cut_off)) as server:
        assert main([*run, str(server.url), "--retry", "1"]) == 0
    (_, record) = records(folder / "index.jsonl")
    assert (folder / record["file"]).read_text() == "at last"


def test_temporary_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".part-3").write_bytes(b"half")
    (tmp_path / "mine").write_bytes(b"mine")
    with background() as server:
        assert main(["fetch", str(server.url), "--output-dir", str(tmp_path), "-s"]) == 0
    assert not (tmp_path / ".part-3").exists()
    assert (tmp_path / "mine").read_bytes() == b"mine"


# ---- resuming --------------------------------------------------------------------------------


def test_resume_fetches_the_rest_once(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with background() as server:
        urls = [f"{server.url}{n}" for n in range(10)]
        listed = tmp_path / "urls.txt"
        listed.write_text("\n".join([*urls[:5], "no url"]))
        run = ["fetch", "-i", str(listed), "-o", str(out), "--resume"]
        assert main(run) == 1
        whole = out.read_bytes()
        out.write_bytes(whole[:-3])  # truncated: its last record is lost
        lost = json.loads(whole.splitlines()[-1])["url"]
        listed.write_text("\n".join([*urls, "no url"]))
        server.audit.clear()
        main(run)
        repeated = {f"{server.url.parent}{r.path[1:]}" for r in server.audit.requests}
        assert repeated == {*urls[5:]} | ({lost} & {*urls})
    assert sorted(by_url(out)) == sorted([*urls, "no url"])
    assert "5 were done before" in capsys.readouterr().err


def test_records_of_another_list_are_reported(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with background() as server:
        for names in (["a", "b", "c"], ["b", "d"]):
            urls = [f"{server.url}{name}" for name in names]
            assert main(["fetch", *urls, "-o", str(out), "--resume"]) == 0
    messages = capsys.readouterr().err
    assert "1 fetched, 0 failed, 1 were done before.\n" in messages
    assert messages.endswith("The output also has 2 records of URLs that are not in this list.\n")
    assert messages.count("The output also has") == 1


# ---- invalid options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-i", "no/such/file"], "no/such/file cannot be read: No such file"),
        (["-i", "."], ". cannot be read: it is a folder"),
        (["-", "-i", "-"], "- was given more than once"),
        (["http://a/", "--resume"], "--resume needs a file to continue"),
        (["http://a/", "-o", "no/such/out"], "no/such/out cannot be written: No such file"),
        (["http://a/", "-o", "."], ". cannot be written: Is a directory"),
        (["http://a/", "--output-dir", "/dev/null"], "/dev/null is no folder to write to"),
        (["http://a/", "-q", "-v"], "--quiet and --verbose: give one of them"),
        (["http://a/", "-I", "-d", "x"], "--head sets the method"),
        (["http://a/", "-H", "no colon"], "-H/--header: must be 'Name: value'"),
        (["http://a/", "-H", "a: b\r\nc: d"], "-H/--header: must be 'Name: value'"),
        (["http://a/", "-A", "a\nb"], "-A/--user-agent: must be"),
        (["http://a/", "-X", "GET /"], "must be a method such as GET"),
        (["http://a/", "-d", "@no/such/file"], "no/such/file cannot be read"),
        (["http://a/", "--rate", "fast"], "--rate: cannot read 'fast' as a rate"),
        (["http://a/", "--rate", "0"], "--rate: rate must be finite and above zero, got 0.0"),
        (["http://a/", "--rate", "5/s,fast"], "--rate: cannot read 'fast' as a rate"),
        (["http://a/", "--rate", "5/s", "--burst", "6"], "burst=6 is more than the limit"),
        (["http://a/", "--per-host", "5/s", "--burst", "6"], "burst=6 is more than the limit"),
        (["http://a/", "--rate", "5/s", "--burst", "0"], "--burst: must be a whole number from 1"),
        (["http://a/", "--burst", "2"], "--burst bounds the use of a rate: give --rate"),
        (["http://a/", "--concurrency", "0"], "--concurrency: must be a whole number"),
        (["http://a/", "--retries", "-1"], "must be a whole number from 0"),
        (["http://a/", "--max-time", "soon"], "must be a number of seconds"),
        (["http://a/", "--max-retry-after", "0"], "must be a number of seconds, above 0"),
        (["http://a/", "--max-filesize", "big"], "must be a number of bytes such as 100k"),
    ],
)
def test_invalid_options_give_an_error_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fetch", *arguments])
    assert ended.value.code == 2
    printed, messages = capsys.readouterr()
    assert printed == ""
    (error,) = messages.splitlines()
    assert error.startswith("aiothrottle fetch: error: ")
    assert complaint in error


def test_input_as_output_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not empty, and the error for such an output says to remove it."""
    listed = tmp_path / "urls.txt"
    listed.write_text("http://127.0.0.1:1/")
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "-i", str(listed), "-o", str(tmp_path / "." / "urls.txt")])
    assert ended.value.code == 2
    assert "--input-file and --output are the same file" in capsys.readouterr().err


# ---- the terminal ----------------------------------------------------------------------------


def test_response_text_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;gotcha\x07\x9b2J\u202e"
    handler = answering(
        a={"text": evil, "status": 500},
        b={"status": 302, "headers": {"Location": f"http://\u202e{'x' * 70}/"}},
    )
    with background(handler=handler) as server:
        urls = [f"{server.url}a", f"{server.url}b", f"{server.url}{evil}"]
        assert main(["fetch", *urls, "-L", "--save-header", "*", "--retry", "0"]) == 1
    printed, messages = capsys.readouterr()
    assert (printed + messages).replace("\n", "").isprintable()
    assert "status 500" in messages


def test_further_failures_are_in_the_output_only(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", *(f"ftp://{n}" for n in range(100)), "-o", str(out)]) == 1
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 10 + 1 + 2
    assert messages[10] == "There are more failures; all of them are in the output."


@pytest.mark.parametrize("option", ["-q", "--quiet", "-s", "--silent"])
def test_quiet_run_prints_nothing(
    option: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "ftp://nothing", "-o", str(out), option]) == 1
    assert capsys.readouterr() == ("", "")


def test_verbose_run_prints_requests_and_waits(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def throttle(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "1"})

    handler = in_turn(answering(root=throttle), failing(500), cut_off)
    with background(handler=handler) as server:
        url = str(server.url)
        secret = url.replace("//", "//me:secret@")
        header = ["-H", "X-Key: secret"]
        limits = ["--rate", "1/500ms", "--concurrency", "1"]
        assert main(["fetch", secret, url, *limits, "-v", *header, "-o", str(out)]) == 0
    messages = capsys.readouterr().err
    assert "secret" not in messages
    lines = re.sub(r"\d+\.\d{3}", "N", messages).splitlines()
    (end,) = (n for n, line in enumerate(lines) if line.startswith("2 URLs in"))
    shown = url.replace("//", "//***@")
    cut = next(line for line in lines if "next attempt" in line)
    assert cut.startswith(f"* N {shown}: ")
    # The delay after the 500 is drawn: the limiter may be ready before it ends.
    waits = [line for line in lines if line == "* N waited N s for the limits"]
    assert len(waits) >= 2
    assert [line for line in lines[:end] if line not in waits] == [
        f"> N GET {shown}",
        f"< N 429 {url} in N s",
        "* N all requests paused for N s: the server throttled a request and asked for a pause",
        "* N status 429: attempt 2 in N s",
        f"> N GET {shown}",
        f"< N 500 {url} in N s",
        "* N status 500: attempt 3 in N s",
        f"> N GET {shown}",
        f"< N 200 {url} in N s",
        cut,
        f"> N GET {shown}",
        f"< N 200 {url} in N s",
        f"> N GET {url}",
        f"< N 200 {url} in N s",
    ]


def test_verbose_run_prints_failed_connections(capsys: pytest.CaptureFixture[str]) -> None:
    with background() as server:
        unreachable = str(server.url)
    assert main(["fetch", unreachable, "-v", "--retry", "1"]) == 1
    failed, wait, *_ = [
        line for line in capsys.readouterr().err.splitlines() if not line.startswith("> ")
    ]
    assert re.match(rf"! \d\.\d+ {unreachable}: Cannot connect .* after \d\.\d+ s", failed)
    assert re.match(r"\* \d\.\d+ Cannot connect .*: attempt 2 in \d\.\d+ s", wait)


# ---- a long list -----------------------------------------------------------------------------


class Sink:
    """An output that keeps nothing."""

    def __init__(self) -> None:
        self.done = Done()
        self.count = 0

    async def write(self, _: bytes) -> None:
        self.count += 1
        await asyncio.sleep(0)


async def test_list_is_read_no_faster_than_fetched() -> None:
    asked = 0

    def endless(size: int) -> bytes:
        nonlocal asked
        asked += size
        return b"no url\n" * (size // 7) if asked < 50_000_000 else b""

    sink = Sink()
    async with ClientSession() as session:
        sender = Sender(session, RateLimiter(), Options())
        lines = Lines([Source("endless", endless)], 100, few=10)
        crawl = Crawl(Rules(), sender=sender, lines=lines, reader=UrlReader(), output=sink)  # type: ignore[arg-type]
        running = asyncio.create_task(crawl.run(10))
        while sink.count < 20_000:
            await asyncio.sleep(0.001)
            assert asked <= 7 * sink.count + 4 * 65536
        crawl.stop()
        await running
    assert lines.fraction is None
