"""`aiothrottle fetch --requests`: requests as JSON lines, their records, and language models."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.cli.fetch.jobs import JsonReader
from aiothrottle.cli.fetch.lines import Line
from tests.cli.conftest import Command, Jobs, Record, Serve, records_of
from tests.cli.handlers import Seen, always, noting
from tests.llm.calling import prompt_of
from tests.llm.fake_api import FakeAnthropic, FakeAPI, FakeOpenAI
from tests.support.background import in_thread
from tests.support.effort import examples

SECRET = "sk-Zq7Kx3"
ONE_BY_ONE = ["--concurrency", "1"]

# ---- the requests ----------------------------------------------------------------------------


def test_line_says_method_headers_and_body(jobs: Jobs, fetch: Command, serve: Serve) -> None:
    seen = list[Seen]()
    url, value = serve(noting(seen)).url, {"text": "größer", "n": [1, 2.5, None, True]}
    lines: list[Record] = [
        {"url": f"{url}plain"},
        {"url": f"{url}json", "json": value},
        {"url": f"{url}data", "data": "a=ö"},
        {"url": f"{url}put", "method": "put", "data": "x", "json": None, "key": None},
        {"url": f"{url}own", "json": 0, "headers": {"content-type": "a/b"}},
        {"url": f"{url}headers", "headers": {"x-RUN": "line", "X-Line": "it's: mine"}},
    ]
    assert fetch("--requests", jobs("# a list", "", *lines), "-H", "X-Run: r: un").status == 0
    names = ("Content-Type", "X-Run", "X-Line")
    found = {it.path: [it.method, *map(it.headers.get, names), it.body] for it in seen}
    form = "application/x-www-form-urlencoded"
    assert json.loads(found["/json"].pop() or "") == value
    assert found == {
        "/plain": ["GET", None, "r: un", None, ""],
        "/json": ["POST", "application/json", "r: un", None],
        "/data": ["POST", form, "r: un", None, "a=ö"],
        "/put": ["PUT", form, "r: un", None, "x"],
        "/own": ["POST", "a/b", "r: un", None, "0"],
        "/headers": ["GET", None, "line", "it's: mine", ""],
    }


def test_record_has_the_id_or_else_the_line(jobs: Jobs, fetch: Command, serve: Serve) -> None:
    url = str(serve().url)
    listed = jobs({"url": url, "id": "é"}, "", {"url": url}, *({"url": url, "id": n} for n in "3x"))
    first, second, *_ = fetch("--requests", listed, *ONE_BY_ONE).records
    assert list(first) == ["url", "id", "status", "body", "attempts", "waited", "error"]
    assert first["id"] == "é"
    assert (second["line"], "id" in second) == (3, False)


def test_bodies_are_files_of_the_index(
    tmp_path: Path, jobs: Jobs, command: Command, serve: Serve
) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    folder, url = tmp_path / "answers", str(serve(echo).url)
    folder.mkdir()
    (folder / ".part-3").write_bytes(b"half")  # of a run that was killed
    (folder / "mine").write_bytes(b"mine")
    bodies = {n: f"{n}" * 50_000 for n in range(9)}
    listed = jobs(*({"url": url, "id": n, "data": body} for n, body in bodies.items()))
    assert command("fetch", "--requests", listed, "--output-dir", folder).status == 0
    index = records_of(folder / "index.jsonl")
    found = {record["id"]: folder / record["file"] for record in index}
    assert {own: path.read_text() for own, path in found.items()} == bodies
    assert {*folder.iterdir()} == {*found.values(), folder / "index.jsonl", folder / "mine"}
    assert not any("body" in record for record in index)
    # Not host-2.txt, host-3.txt and so on, each found by looking for all before it.
    assert len({path.stem.split("-")[1] for path in found.values()}) == 9


# ---- invalid lines ---------------------------------------------------------------------------

INVALID: list[tuple[Record | str, str]] = [
    ('{"url": ', "is no JSON: Expecting value at column 8"),
    ('{"url": "http://a/", "cost": NaN}', "is no JSON: NaN is no number"),
    ('["http://a/"]', "is no JSON object"),
    ("[" * 100_000, "is nested too deeply"),
    ("{}", "the url is missing"),
    ({"url": " "}, "the url is missing"),
    ({"url": 5}, "url must be a text, got a value of another type"),
    ({"url": "ftp://a/"}, "the url is no URL: it does not begin with http:// or https://"),
    ({"url": "http://a/", "methd": "GET"}, "has the unknown field 'methd'; there are url, "),
    ({"url": "http://a/", "method": "GET /"}, "a method is a word such as GET, got 'GET /'"),
    ({"url": "http://a/", "json": {}, "data": ""}, "has both json and data"),
    ({"url": "http://a/", "data": {}}, "data must be a text"),
    ({"url": "http://a/", "data": "\ud800"}, "data has half of a surrogate pair"),
    ('{"url": "http://a/", "json": 1e999}', "json has a number that is too great"),
    ({"url": "http://a/", "headers": ["A: b"]}, "headers must be an object"),
    ({"url": "http://a/", "headers": {"A": 1}}, "the header 'A' must be a text"),
    ({"url": "http://a/", "headers": {"A": "b\r\nC: d"}}, "a value with a control character"),
    ({"url": "http://a/", "headers": {"A:b": "c"}}, "a name with other characters"),
    ({"url": "http://a/", "headers": {"": "c"}}, "a name with other characters"),
    ({"url": "http://a/", "headers": {"content-length": "5"}}, "must not have content-length"),
    ({"url": "http://a/", "cost": -1}, "cost must be a finite number of tokens, 0 or more"),
    ('{"url": "http://a/", "cost": 1e999}', "cost must be a finite number of tokens"),
    ({"url": "http://a/", "cost": "1"}, "cost must be a finite number of tokens"),
    ({"url": "http://a/", "cost": {"tokens": 1}}, "cost must be a number, as the limits name"),
    ({"url": "http://a/", "key": "a"}, "key chooses one of several limits: give --per-host"),
    ({"url": "http://a/", "id": 1.5}, "id must be a text or a whole number, got 1.5"),
    ({"url": "http://a/", "id": True}, "id must be a text or a whole number, got True"),
    ({"data": "x" * 200_000}, "is longer than 200000 bytes"),
    ({"url": "http://a/", "id": "good"}, "an earlier line has the id 'good' too"),
]


def test_invalid_lines_become_records(
    jobs: Jobs, fetch: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonReader, "longest", 200_000)
    server = serve()
    good = [{"url": str(server.url), "id": own} for own in ("good", 1, "1")]
    listed = jobs(*good, *(line for line, _ in INVALID))
    ended = fetch("--requests", listed, *ONE_BY_ONE)
    assert (ended.status, server.audit.sent) == (1, 3)
    assert [(it["id"], it["error"]) for it in ended.records[:3]] == [
        *(("good", None), (1, None), ("1", None))
    ]
    bad = ended.records[3:]
    for number, (record, (_, problem)) in enumerate(zip(bad, INVALID, strict=True), 4):
        assert record["line"] == number
        assert record["error"].startswith(f"{listed}, line {number}: ")
        assert problem in record["error"]
    for message, record in zip(ended.messages.splitlines()[:10], bad, strict=False):
        place = f"{record['url']} (line {record['line']}): " if record["url"] else ""
        assert message.startswith(f"{place}{listed}, line {record['line']}: ")
    assert ended.messages.replace("\n", "").isprintable()


def test_invalid_cost_of_resources_becomes_a_record(jobs: Jobs, fetch: Command) -> None:
    problems: list[tuple[object, str]] = [
        (5, "a cost must be a mapping of the resources requests, tokens to tokens, such as"),
        ({"seats": 1}, "a cost may have the resources requests, tokens, got 'seats'"),
        ({"tokens": -1}, "a cost must be a finite number of tokens, 0 or more, at most 1e+12, got"),
        ({"tokens": 1001}, "cost must be at most 1000 of 'tokens', got 1001"),
    ]
    url = "http://127.0.0.1:1/"
    lines = ({"url": url, "id": n, "cost": cost} for n, (cost, _) in enumerate(problems))
    rates = ["--rate", "requests=9/s", "--rate", "tokens=1000/s"]
    records = fetch("--requests", jobs(*lines), *rates, *ONE_BY_ONE).records
    assert [(it["id"], it["attempts"]) for it in records] == [(n, 0) for n in range(4)]
    for record, (_, problem) in zip(records, problems, strict=True):
        assert problem in record["error"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(["url", "method", "headers", "json", "data", "cost", "key", "id", "x"])


@examples(40)
@given(
    line=st.binary()
    | st.dictionaries(fields, json_values).map(
        lambda line: json.dumps({"url": "http://a/", **line}).encode()
    ),
    resources=st.sampled_from([(), ("tokens",)]),
)
def test_any_line_is_a_job_or_a_problem(line: bytes, resources: tuple[str, ...]) -> None:
    reader = JsonReader({"A": "b"}, resources, keyed=True)
    job = reader.read(Line("list", 7, line, len(line)))
    if job is not None:
        assert (job.request is None) == bool(job.problem)
        assert (job.id is None) == (job.number == 7)


def test_no_header_is_written_or_printed(jobs: Jobs, fetch: Command, serve: Serve) -> None:
    url, token = str(serve().url), {"Authorization": f"Bearer {SECRET}"}
    values: list[object] = [f"Bearer {SECRET}\n", [SECRET], f"Bearer {SECRET}\ud800"]
    headers: list[object] = [token, *({"Authorization": it} for it in values)]
    headers += [{f"Authorization: {SECRET}": ""}, f"Authorization: {SECRET}"]
    listed = jobs(
        *({"url": url, "headers": it} for it in headers),
        {"url": f"{url}\n", "method": f"{url} ", "headers": token},
        json.dumps({"headers": token, "url": url})[:-1],
        {"url": url.replace("//", f"//me:{SECRET}@"), "headers": token, "cost": -1},
    )
    ended = fetch("--requests", listed, "-H", f"X-Key: {SECRET}")
    assert (ended.status, len(ended.records)) == (1, 9)
    assert SECRET not in f"{ended.records} {ended.printed} {ended.messages}"


# ---- resuming --------------------------------------------------------------------------------


def test_resume_sends_what_has_no_record_by_id_or_line(
    jobs: Jobs, fetch: Command, serve: Serve, out: Path
) -> None:
    seen = list[Seen]()
    url, texts = str(serve(noting(seen)).url), ["a", "line 2", "3", "line 4"]
    named: list[Record] = [{"id": "a"}, {}, {"id": 3}, {}]
    lines = [{"url": url, "data": it, **own} for it, own in zip(texts, named, strict=True)]
    listed = jobs(*lines, "no JSON", {"url": url, "id": "a", "data": "another a"})
    run = ["--requests", listed, "--resume", *ONE_BY_ONE]
    assert fetch(*run).status == 1
    whole = out.read_bytes().splitlines(keepends=True)
    for lost in ([0], [1, 2], [3, 4], [0, 5], [5], [0, 1, 2, 3, 4, 5]):
        # The other records, in another order.
        out.write_bytes(b"".join(whole[n] for n in reversed(range(6)) if n not in lost))
        seen.clear()
        assert len(fetch(*run).records) == 6
        assert [it.body for it in seen] == [texts[n] for n in lost if n < 4]


# ---- limits ----------------------------------------------------------------------------------


TOKENS: Record = {"cost": {"tokens": 10}}
COSTS: list[tuple[list[Record], str]] = [
    ([{"cost": 4}] * 3, "--rate 4/100ms"),
    ([TOKENS] * 3, "--rate requests=100/s --rate tokens=10/100ms"),
    ([{}] * 30, "--rate requests=10/100ms --rate tokens=10/s"),
    ([{}] * 5, "--rate requests=20/s --rate tokens=100/s --burst 1"),
    # Of each key, below a common rate.
    ([{"key": "a", **TOKENS}] * 2, "--per-host requests=99/s,tokens=10/200ms --rate 99/s"),
]


@pytest.mark.parametrize(("lines", "limits"), COSTS)
def test_cost_counts_in_each_resource(
    lines: list[Record], limits: str, jobs: Jobs, fetch: Command, serve: Serve
) -> None:
    url = str(serve().url)
    ended = fetch("--requests", jobs(*({"url": url, **it} for it in lines)), *limits.split())
    assert ended.status == 0
    assert ended.seconds >= 0.2


def test_key_chooses_the_limit(jobs: Jobs, fetch: Command, serve: Serve) -> None:
    server = serve()
    lines = ({"url": f"{server.url}{n}", "key": key} for n, key in enumerate("aaab"))
    assert fetch("--requests", jobs(*lines), "--per-host", "1/100ms").seconds >= 0.2
    # The other key does not wait behind the first one.
    order = [request.path for request in server.audit.requests]
    assert order.index("/3") < order.index("/1") < order.index("/2")


# ---- language models -------------------------------------------------------------------------


def serving(
    kind: Callable[..., FakeAPI], *limits: int, **options: object
) -> AbstractContextManager[tuple[FakeAPI, str]]:
    @asynccontextmanager
    async def serve() -> AsyncGenerator[tuple[FakeAPI, str]]:
        fake = kind(*limits, latency=0.02, **options)
        async with fake.serve() as url:
            yield fake, url

    return in_thread(serve)


def chats(url: str, count: int, **more: object) -> list[Record]:
    url, small = f"{url}/v1/chat/completions", {"model": "small", "max_tokens": 1000}
    bodies = [{**small, "messages": prompt_of(n)} for n in range(count)]
    return [{"id": f"call-{n}", "url": url, "json": it, **more} for n, it in enumerate(bodies)]


def test_calls_of_openai_are_never_throttled(jobs: Jobs, fetch: Command) -> None:
    rates = ["--rate", "requests=600/s", "--rate", "tokens=40000/s"]
    with serving(FakeOpenAI, 600, 40_000, period=1) as (fake, url):
        ended = fetch("--requests", jobs(*chats(url, 70)), "--profile", "openai", *rates)
        assert (ended.status, fake.requests, fake.throttled) == (0, 70, 0)
        # More than the server admits at once: without charges it would have throttled some.
        assert fake.used["tokens"] > 40_000
    assert ended.by("id").keys() == {f"call-{n}" for n in range(70)}
    used = (json.loads(record["body"])["usage"]["total_tokens"] for record in ended.records)
    assert sum(used) == fake.used["tokens"]


def test_calls_of_anthropic_are_never_throttled(jobs: Jobs, fetch: Command) -> None:
    rates = ["--rate", "requests=600/s;input_tokens=60000/s;output_tokens=6000/s"]
    with serving(FakeAnthropic, 600, 60_000, 6_000, period=1) as (fake, url):
        body: Record = {"model": "small", "max_tokens": 1000}
        bodies = ({**body, "messages": prompt_of(n)[1:]} for n in range(25))
        listed = jobs(*({"url": f"{url}/v1/messages", "json": each} for each in bodies))
        ended = fetch("--requests", listed, "--profile", "anthropic", *rates)
        assert (ended.status, fake.requests, fake.throttled) == (0, 25, 0)
        assert fake.used["output_tokens"] > 6_000


def test_charged_calls_do_not_wait_in_vain(jobs: Jobs, fetch: Command) -> None:
    with serving(FakeOpenAI, 600, 1_000_000) as (_, url):
        settled = chats(url, 6, cost={"tokens": 30_000}), "60000/min"
        above_the_limit = chats(url, 1), "500/s"
        for lines, rate in (settled, above_the_limit):
            rates = ["--rate", "requests=600/min", "--rate", f"tokens={rate}"]
            ended = fetch("--requests", jobs(*lines), "--profile", "openai", *rates)
            assert ended.status == 0
            # As they are charged, two calls are a minute's, and six take two minutes.
            assert ended.seconds < 30


def test_profile_refills_before_a_reset(jobs: Jobs, fetch: Command, serve: Serve) -> None:
    url = str(serve().url)
    listed = jobs(*({"url": url, "cost": {"tokens": tokens}} for tokens in (240, 1)))
    ended = fetch("--requests", listed, "--profile=openai", "--rate=tokens=240/min")
    # A window would be free again after a minute.
    assert 0.2 <= ended.seconds < 30
    reporting = always(
        x_ratelimit_limit_tokens="60000",
        x_ratelimit_remaining_tokens="0",
        x_ratelimit_reset_tokens="60",
    )
    url, cost = str(serve(reporting).url), {"tokens": 60}
    options = ["--profile", "openai", "--rate=tokens=60000/min", *ONE_BY_ONE]
    ended = fetch("--requests", jobs(*[{"url": url, "cost": cost}] * 3), *options)
    # Without the profile of the headers each call would wait for the reset, a minute.
    assert 0.1 < ended.seconds < 30


def test_profile_retries_a_call_within_retries(jobs: Jobs, fetch: Command) -> None:
    options = ["--profile=openai", "--retries=1", "--rate=tokens=60000/min"]
    for failures, status in ((1, 0), (9, 1)):
        with serving(FakeOpenAI, 600, 60_000, failures=(500,) * failures) as (_, url):
            ended = fetch("--requests", jobs(*chats(url, 1)), *options)
        assert (ended.status, ended.record["attempts"]) == (status, 2)
