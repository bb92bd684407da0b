"""`aiothrottle fetch` against a server on loopback: the requests, the records, the messages."""

import base64
import re
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiothrottle import Rate
from aiothrottle.cli.fetch import report
from aiothrottle.cli.fetch.crawl import Tally
from aiothrottle.cli.fetch.results import Folder, open_output
from tests.cli.conftest import Command, Serve, records_of
from tests.cli.handlers import Seen, always, by_path, cut_off, in_turn, noting, to, urls_of
from tests.support.background import background
from tests.support.serving import hang_up_in_a_header, speak_no_http

# ---- records and summary ---------------------------------------------------------------------


def test_invalid_lines_become_records(tmp_path: Path, fetch: Command, serve: Serve) -> None:
    urls, server = tmp_path / "urls.txt", serve()
    lines = ["# a list", "", str(server.url), "ftp://example.org", "\x1b[2J", "x" * 1_000_000]
    lines += [f"{server.url}b", "me:secret@127.0.0.1", "http://me:sec/ret@127.0.0.1/"]
    content = "\r\n".join(lines).encode() + b"\nhttp://a/\xe9\n"
    urls.write_bytes(b"\xef\xbb\xbf" + content)
    ended = fetch("-i", urls)
    assert (ended.status, len(ended.records), server.audit.sent) == (1, 8, 2)
    errors = [record["error"] for record in ended.records if record["error"]]
    assert f"{urls}, line 4: is no URL: it does not begin with http:// or https://" in errors
    assert f"{urls}, line 10: is not in UTF-8" in errors
    assert {"***@127.0.0.1", "http://***@127.0.0.1/"} <= ended.by("url").keys()
    assert ended.messages.replace("\n", "").isprintable()
    assert "2 fetched, 6 failed" in ended.messages
    assert not re.search("sec/?ret", f"{ended.records} {ended.messages}")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="another platform")
def test_list_that_fails_ends_the_run(fetch: Command) -> None:
    ended = fetch("-i", "/proc/self/mem")  # whose beginning cannot be read
    assert (ended.status, ended.records) == (3, [])
    assert "the list cannot be read: Input/output error" in ended.messages


def test_lists_are_read_in_their_order(tmp_path: Path, fetch: Command, serve: Serve) -> None:
    server = serve()
    given, *lists = ([f"{server.url}{name}{n}" for n in range(3)] for name in "abc")
    options: list[object] = []
    for number, urls in enumerate(lists):
        listed = tmp_path / f"{number}.txt"
        listed.write_text("\n".join(urls))
        options += ["-i", listed]
    ended = fetch(*given, *options, "--concurrency", "1")
    assert (ended.status, [it["url"] for it in ended.records]) == (
        0,
        [*given, *lists[0], *lists[1]],
    )
    (tmp_path / "1.txt").write_text("no url")
    (tmp_path / "0.txt").write_text("\n\n")
    (record,) = fetch(*options).records
    assert record["error"].startswith(f"{tmp_path / '1.txt'}, line 1: is no URL")


def test_refused_connection_fails_only_its_url(fetch: Command, serve: Serve) -> None:
    with background() as server:
        unreachable = str(server.url)
    handlers = (None, hang_up_in_a_header, speak_no_http)
    good, broken, other = (str(serve(handler).url) for handler in handlers)
    secret = unreachable.replace("//", "//me:secret@")
    urls = (secret, "http://no-such-host.invalid/", broken, other, good)
    ended = fetch(*urls, "--retries", "1", "-v")
    assert ended.status == 1
    assert ended.by("url")[broken]["error"] == "Server disconnected"
    assert re.fullmatch(r"the answer is no valid HTTP: .*SSH.*'", ended.by("url")[other]["error"])
    record = ended.by("url")[unreachable.replace("//", "//***@")]
    assert (record["status"], record["attempts"]) == (None, 2)
    assert "Cannot connect" in record["error"]
    assert ended.by("url")[good]["status"] == 200
    assert "secret" not in f"{ended.records} {ended.messages}"
    assert re.search(r"\n! \d\.\d+ http\S+: Cannot connect .* after \d\.\d+ s\n", ended.messages)
    assert re.search(r"\n\* \d\.\d+ Cannot connect .*: attempt 2 in \d\.\d+ s\n", ended.messages)


def test_answers_become_records(fetch: Command, serve: Serve) -> None:
    transient = {str(it): always(it) for it in (408, 500, 522)}
    transient |= {"cut off": cut_off, "late": always(after=60)}
    handlers = {name: in_turn(failure) for name, failure in transient.items()} | {
        "many": in_turn(always(500), cut_off, always(500), cut_off),
        "long": always(body=b"x" * 1025),
        "short": always(body="x" * 1024, X_Answer="1", X_Other="2"),
        "a": to("/b", 301),
        "b": to("c"),
        "c": always(body="there"),
        "round": to("round"),
        "away": to("file:///etc/passwd"),
    }
    permanent = {str(it): always(it, "no") for it in (400, 404, 501, 505)}
    server = serve(by_path(handlers | permanent))
    names = [name for name in (*handlers, *permanent) if name not in {"b", "c"}]
    options = "-L --max-redirs 3 --max-time 1 --retry 2 --max-filesize 1k --save-header x-answer"
    ended = fetch(*urls_of(server, names), "no url", *options.split())
    assert ended.status == 1
    found = {it["url"].removeprefix(str(server.url)): it for it in ended.records}
    assert {
        name: (it["status"], it.get("body", "")[:7], it["attempts"], it["error"])
        for name, it in found.items()
    } == {
        **dict.fromkeys(transient, (200, "at last", 2, None)),
        **{name: (int(name), "no", 1, None) for name in permanent},
        "many": (500, "", 3, None),  # all failures of a URL share its retries
        "long": (200, "", 1, "the body is longer than 1024 bytes (--max-filesize)"),
        "short": (200, "xxxxxxx", 1, None),
        "a": (200, "there", 1, None),
        "round": (302, "", 1, "more than 3 redirects"),
        "away": (302, "", 1, "redirected to what is no HTTP URL"),
        "no url": (None, "", 0, "is no URL: it does not begin with http:// or https://"),
    }
    assert found["a"]["final_url"] == f"{server.url}c"
    assert found["short"]["headers"] == {"x-answer": "1"}
    assert f"{server.url}404: status 404\n" in ended.messages
    statuses = "200: 8, 302: 2, 400: 1, 404: 1, 500: 1, 501: 1, 505: 1, none: 1"
    assert ended.messages.endswith(f"By status: {statuses}.\n")
    late = fetch(serve(always(after=60)).url, "--max-time", "0.1", "--retries", "0")
    assert (late.status, late.record["error"]) == (1, "no answer in time")


def test_each_followed_redirect_takes_a_token(fetch: Command, serve: Serve) -> None:
    urls = urls_of(serve(by_path({"a": to("/b", 301), "b": to("c"), "c": always()})), "ab")
    assert [it["status"] for it in fetch(*urls).records] == [301, 302]
    ended = fetch(*urls, "-L", "--rate", "4/200ms")
    assert (ended.status, ended.seconds >= 0.2) == (0, True), "5 requests of 2 URLs"


def test_first_failures_are_printed_and_none_if_quiet(fetch: Command) -> None:
    urls = [f"ftp://{n}" for n in range(100)]
    ended = fetch(*urls)
    messages = ended.messages.splitlines()
    assert (ended.status, len(ended.records), len(messages)) == (1, 100, 10 + 1 + 2)
    assert messages[10] == "There are more failures; all of them are in the output."
    for option in ("-q", "--quiet", "-s", "--silent"):
        quiet = fetch(*urls, option)
        assert (quiet.status, quiet.printed, quiet.messages) == (1, "", ""), option


def test_any_content_type_is_read(fetch: Command, serve: Serve, tmp_path: Path) -> None:
    texts = ("text/html; a*0*", 'TEXT/HTML ; Charset="latin-1"', "text/html; charset*=latin-1")
    types = dict(zip("abc", texts, strict=True))
    served = {name: always(body=b"\xe9", Content_Type=text) for name, text in types.items()}
    urls = urls_of(serve(by_path(served)), types)
    found = [fetch(url).records[0] for url in urls]
    assert [it.get("body", it.get("body_base64")) for it in found] == ["6Q==", "é", "6Q=="]
    assert fetch(*urls, "--output-dir", str(tmp_path / "pages")).status == 0
    assert len(list(tmp_path.glob("pages/*.html"))) == len(urls)


def test_response_text_cannot_move_the_cursor(command: Command, serve: Serve) -> None:
    evil = "\x1b]0;gotcha\x07\x9b2J\u202e"
    server = serve(by_path({"a": always(500, evil), "b": to(f"http://\u202e{'x' * 70}/")}))
    urls = urls_of(server, ["a", "b", evil])
    ended = command("fetch", *urls, "-L", "--save-header", "*", "--retry", "0")
    assert ended.status == 1
    assert (ended.printed + ended.messages).replace("\n", "").isprintable()
    assert "gotcha" in ended.printed
    assert "status 500" in ended.messages


def test_verbose_run_prints_requests_and_waits(fetch: Command, serve: Serve) -> None:
    asking = always(429, Retry_After_Ms="200")
    url = str(serve(in_turn(asking, always(), always(500), always(), cut_off)).url)
    secret, shown = url.replace("//", "//me:secret@"), url.replace("//", "//***@")
    limits = ["--rate", "1/100ms", "--concurrency", "1"]
    ended = fetch(secret, url, url, *limits, "-v", "-H", "X-Key: secret")
    assert ended.status == 0
    assert "secret" not in ended.messages
    lines = re.sub(r"\d+\.\d{3}", "N", ended.messages).splitlines()
    (end,) = (n for n, line in enumerate(lines) if line.startswith("3 URLs in"))
    cut = next(line for line in lines if "next attempt" in line)
    assert cut.startswith(f"* N {url}: ")
    # The delay before a retry is drawn: the limiter may be ready before it ends.
    waits = [line for line in lines if line == "* N waited N s for the limits"]
    assert len(waits) >= 2
    get, answer = f"> N GET {url}", f"< N 200 {url} in N s"
    assert [line for line in lines[:end] if line not in waits] == [
        f"> N GET {shown}",
        f"< N 429 {url} in N s",
        "* N all requests paused for N s: the server throttled a request and asked for a pause",
        "* N status 429: attempt 2 in N s",
        f"> N GET {shown}",
        answer,
        *(get, f"< N 500 {url} in N s", "* N status 500: attempt 2 in N s", get, answer),
        *(get, answer, cut, get, answer),
    ]


def test_progress_is_lines(fetch: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_LOG", 0.1)
    ended = fetch(*urls_of(serve(always(after=0.05)), 10), "--concurrency", "2")
    lines = [line for line in ended.messages.splitlines() if " done  " in line]
    form = r"\d+ %  \d+ done  \d+\.\d/s  latency p50 [\d.]+ ms, p95 [\d.]+ m?s  \d+ s left"
    assert lines
    assert [line for line in lines if not re.fullmatch(form, line)] == []


# ---- limits ----------------------------------------------------------------------------------


def test_throttled_requests_are_retried_and_counted(fetch: Command, serve: Serve) -> None:
    server = serve(rate="5/s", throttled_response="503")
    ended = fetch(*urls_of(server, 8), "--concurrency", "8")
    throttled = server.audit.throttled
    assert ended.status == 0
    assert throttled > 0
    assert sum(record["attempts"] for record in ended.records) == 8 + throttled
    assert max(record["waited"] for record in ended.records) > 0.5
    assert f"{8 + throttled} requests, {throttled} throttled by the server" in ended.messages


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ("--rate 10/100ms", 0.2),
        ("--rate 10/50ms --rate 20/300ms", 0.3),
        ("--rate 20/300ms,10/50ms", 0.3),
        ("--rate 90/s --burst 12", 18 / 90),
        ("--per-host 90/s --burst 12", 18 / 90),
        ("--rate 15/100ms --guard 0.1", 0.2),
    ],
)
def test_run_keeps_its_rates(options: str, least: float, fetch: Command, serve: Serve) -> None:
    first, *others = urls_of(serve(), 30)
    ended = fetch(first, *options.split(), *others)  # options may stand between URLs
    assert (ended.status, ended.printed) == (0, "")
    assert "30 fetched, 0 failed." in ended.messages
    # Counts at the server would shift on a busy machine.
    assert ended.seconds >= least


def test_each_host_has_its_rate_below_the_common_one(fetch: Command, serve: Serve) -> None:
    slow, fast = serve(), serve()
    limits = "--per-host 10/150ms --per-host-concurrency 2 --concurrency 4"
    # The first host has a long queue, before the other one has its turn.
    ended = fetch(*urls_of(slow, 30), *urls_of(fast, 10), *limits.split())
    assert slow.audit.greatest_concurrency <= 2
    assert fast.audit.requests[-1].arrived_at < slow.audit.requests[-1].arrived_at
    assert ended.seconds >= 0.3
    assert len(ended.by("url")) == 40
    urls = [*urls_of(serve(), 8), *urls_of(serve(), 8)]
    ended = fetch(*urls, "--per-host", "100/s", "--rate", "6/100ms")
    assert ended.status == 0
    assert ended.seconds >= 0.2


def test_post_is_retried_if_throttled_or_asked(fetch: Command, serve: Serve) -> None:
    failures = {"500": always(500), "cut off": cut_off, "429": always(429, Retry_After="0")}
    for options, attempts in ([], [1, 1, 2]), (["--retry-all-methods"], [2, 2, 2]):
        server = serve(by_path({name: in_turn(it) for name, it in failures.items()}))
        ended = fetch(*urls_of(server, failures), "-X", "post", "--retry", "1", *options)
        assert ended.status == int(1 in attempts)
        found = ended.by("url")
        assert [found[url]["attempts"] for url in urls_of(server, failures)] == attempts


# ---- a folder of bodies ----------------------------------------------------------------------


def test_incomplete_body_leaves_no_file(tmp_path: Path, command: Command, serve: Serve) -> None:
    folder = tmp_path / "pages"
    run = ["fetch", "--output-dir", folder, "--resume", "--retry", "1"]
    server = serve(in_turn(cut_off, cut_off, cut_off))
    assert command(*run, server.url).status == 1
    (record,) = records_of(folder / "index.jsonl")
    assert record["error"]
    assert "file" not in record
    assert [path.name for path in folder.iterdir()] == ["index.jsonl"]
    assert command(*run, f"{server.url}again").status == 0
    (_, record) = records_of(folder / "index.jsonl")
    assert (folder / record["file"]).read_text() == "at last"


def test_index_that_is_a_link_is_rejected(tmp_path: Path, command: Command, serve: Serve) -> None:
    """Another user who can write to the folder could redirect the records to any file."""
    pages, precious, server = tmp_path / "pages", tmp_path / "precious", serve()
    pages.mkdir()
    index = pages / "index.jsonl"
    index.symlink_to(precious)
    run = ["fetch", server.url, "--output-dir", pages]
    problem = f"{index} is a symbolic link: remove it, or name another file by --output"
    for there, options in product((False, True), ([], ["--resume"])):
        if there:
            precious.touch()
        ended = command(*run, *options)
        assert (ended.status, server.audit.sent, precious.exists()) == (2, 0, there)
        assert problem in ended.messages
    assert precious.read_bytes() == b""
    # One that the user has named is followed.
    assert command(*run, "-o", index, "--resume").status == 0
    assert len(records_of(precious)) == 1
    assert index.is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that root cannot write to")
def test_folder_that_cannot_be_written_is_known_before_a_request(
    command: Command, serve: Serve, out: Path
) -> None:
    server = serve()
    ended = command("fetch", server.url, "--output-dir", "/proc", "-o", out)
    assert (ended.status, server.audit.sent) == (2, 0)
    assert "/proc cannot be written to" in ended.messages


# ---- the output, and resuming ----------------------------------------------------------------

RECORD = b'{"url": "http://a/"}\n'
# Files that are no output of a run, with the line that shows it.
OTHER_DATA = {
    b"My diary\n": 1,
    b"My diary": 1,
    RECORD + b"notes": 2,
    RECORD + b"no\n{}\n": 2,
    b'{"name": 1}\n': 1,
    b"[1]\n": 1,
    b"[" * 200_000 + b"\n": 1,
    b'{"url": 1}\n': 1,
}


def test_file_with_other_data_is_unchanged(command: Command, out: Path) -> None:
    cases = [(it, ["--resume"], f"line {n} of {out} is no record") for it, n in OTHER_DATA.items()]
    cases.append((RECORD, [], "is not empty: continue it with --resume, or remove it"))
    for content, options, problem in cases:
        out.write_bytes(content)
        ended = command("fetch", "http://127.0.0.1:1/", "-o", out, *options)
        assert ended.status == 2, content
        assert problem in ended.messages
        assert out.read_bytes() == content


def test_two_runs_do_not_write_to_one_place(fetch: Command, tmp_path: Path, out: Path) -> None:
    folder = Folder(tmp_path / "pages")
    folder.take()
    run = ["http://127.0.0.1:1/", "--retry", "0"]
    in_folder = [*run, "--output-dir", tmp_path / "pages"]
    for arguments, place in ((in_folder, tmp_path / "pages"), ([*run, "--resume"], out)):
        other = folder if place is not out else open_output(out, resume=True)
        ended = fetch(*arguments)
        other.close()
        assert ended.status == 2
        assert f"another aiothrottle writes to {place}" in ended.messages
        assert fetch(*arguments).status != 2


def test_full_disk_ends_the_run(command: Command, serve: Serve) -> None:
    ended = command("fetch", serve().url, "-o", "/dev/full")
    problem = "the output cannot be written: No space left on device"
    assert (ended.status, ended.messages) == (3, f"aiothrottle fetch: {problem}\n")


def test_resume_fetches_the_rest(tmp_path: Path, fetch: Command, serve: Serve, out: Path) -> None:
    listed, server = tmp_path / "urls.txt", serve()
    urls = urls_of(server, 10)
    run = ["-i", listed, "--resume", "--concurrency", "1"]
    listed.write_text("\n".join(["no url", urls[0], *urls[:5]]))
    assert fetch(*run).status == 1
    out.write_bytes(out.read_bytes()[:-3])  # truncated: its last record is lost
    listed.write_text("\n".join([urls[0], *urls]))
    server.audit.clear()
    ended = fetch(*run)
    assert [f"{server.url}{it.path[1:]}" for it in server.audit.requests] == urls[4:]
    assert sorted(it["url"] for it in ended.records) == sorted(["no url", urls[0], *urls])
    assert "6 fetched, 0 failed, 5 were done before.\n" in ended.messages
    besides = "The output also has 1 record of URLs that are not in this list.\n"
    assert ended.messages.endswith(besides)


def test_resume_sends_the_request_of_the_missing_user(
    tmp_path: Path, fetch: Command, serve: Serve, out: Path
) -> None:
    """The output does not show the credentials in which the URLs differ."""
    seen: list[Seen] = []
    server, users, listed = serve(noting(seen)), ["ann:1", "ann:2", "bob:1", ":1"], tmp_path / "l"
    urls = [f"http://{user}@{server.url.authority}/" for user in users]
    listed.write_text("\n".join(urls[2:]))
    run = ["-q", *urls[:2], "-i", listed, "--concurrency", "1"]
    assert [it["line"] for it in fetch(*run).records] == [1, 2, 3, 4]
    lines = out.read_text().splitlines(keepends=True)
    assert "ann" not in "".join(lines)
    for missing in range(4):
        out.write_text("".join(lines[:missing] + lines[missing + 1 :]))
        assert fetch(*run, "--resume").status == 0
    credentials = [it.headers["Authorization"].split()[1] for it in seen]
    assert [base64.b64decode(it).decode() for it in credentials] == users * 2


ADVICE = {
    "admits about 20/s": '--rate 20/s, or in a program RateLimiter("20/s").',
    "works on 3 at once": "--concurrency 3, or in a program RateLimiter(concurrency_limit=3).",
}


@pytest.mark.parametrize(
    ("given", "learned", "found"),
    [
        (None, (19.63, 10), "admits about 20/s"),
        (1000, (19.63, 10), "admits about 20/s"),
        (1000, (None, 3), "works on 3 at once"),
        (None, (None, 10), None),
        (20, (20.0, 10), None),  # no more than was given
    ],
)
def test_what_is_learned_is_in_progress_and_summary(
    given: float | None,
    learned: tuple[float | None, int],
    found: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    crawl: Any = SimpleNamespace(tally=Tally(), pauses=(0, 0.0), limits=learned)
    rates = [] if given is None else [Rate(given)]
    printed = report.Report(report.Messages(), sys.stderr, rates, 10, drawn=False)
    shown = [text for text, colour in printed._parts(crawl) if colour == "yellow"]
    printed.ended(crawl)
    last = capsys.readouterr().err.splitlines()[-1]
    assert shown == ([] if found is None else [f"server {found}"])
    assert ("Next time" in last) is (found is not None)
    if found is not None:
        assert last == f"The server {found}. Next time give {ADVICE[found]}"
