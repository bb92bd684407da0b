"""`aiothrottle fetch --requests`: requests as JSON lines, their records, and language models."""

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.cli import main
from aiothrottle.cli.fetch.reading.json_lines import JsonReader
from aiothrottle.cli.fetch.reading.lines import Line
from tests.background import background, in_thread, start
from tests.llm.calling import prompt_of
from tests.llm.fake_api import FakeAnthropic, FakeAPI, FakeOpenAI

Json = dict[str, Any]

SECRET = "sk-Zq7Kx3"


def listed(folder: Path, *lines: Json | str) -> str:
    """Write a list of requests, and return its path."""
    path = folder / "jobs.jsonl"
    path.write_text("".join(f"{it if isinstance(it, str) else json.dumps(it)}\n" for it in lines))
    return str(path)


def records(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def seconds(*arguments: str) -> float:
    """The duration of the command: a busy machine makes it longer, never shorter."""
    began = time.perf_counter()
    assert main(["fetch", *arguments]) == 0
    return time.perf_counter() - began


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


# ---- the requests ----------------------------------------------------------------------------


def test_line_says_method_headers_and_body(tmp_path: Path, out: Path) -> None:
    seen: dict[str, Any] = {}

    async def note(request: web.Request) -> web.Response:
        headers = request.headers
        kept = [headers.get(name) for name in ("Content-Type", "X-Run", "X-Line")]
        seen[request.path] = [request.method, *kept, await request.text()]
        return web.Response()

    with background(handler=note) as server:
        lines: list[Json] = [
            {"url": f"{server.url}plain"},
            {"url": f"{server.url}json", "json": {"text": "größer", "n": [1, 2.5, None, True]}},
            {"url": f"{server.url}data", "data": "a=ö"},
            {"url": f"{server.url}put", "method": "put", "data": "x", "json": None, "key": None},
            {"url": f"{server.url}own", "json": 0, "headers": {"content-type": "a/b"}},
            {"url": f"{server.url}headers", "headers": {"x-RUN": "line", "X-Line": "it's: mine"}},
        ]
        jobs = listed(tmp_path, "# a list", "", *lines)
        assert main(["fetch", "--requests", jobs, "-H", "X-Run: run", "-o", str(out), "-s"]) == 0
    form = "application/x-www-form-urlencoded"
    assert json.loads(seen.pop("/json")[4]) == lines[1]["json"]
    assert seen == {
        "/plain": ["GET", None, "run", None, ""],
        "/data": ["POST", form, "run", None, "a=ö"],
        "/put": ["PUT", form, "run", None, "x"],
        "/own": ["POST", "a/b", "run", None, "0"],
        "/headers": ["GET", None, "line", "it's: mine", ""],
    }


def test_json_body_has_its_content_type(tmp_path: Path, out: Path) -> None:
    kinds: list[str] = []

    async def note(request: web.Request) -> web.Response:
        kinds.append(request.headers["Content-Type"])
        return web.Response()

    with background(handler=note) as server:
        jobs = listed(tmp_path, {"url": str(server.url), "json": {}})
        assert main(["fetch", "--requests", jobs, "-o", str(out), "-s"]) == 0
    assert kinds == ["application/json"]


def test_record_has_the_id_or_else_the_line(tmp_path: Path, out: Path) -> None:
    with background() as server:
        url = str(server.url)
        jobs = listed(tmp_path, {"url": url, "id": "é"}, "", {"url": url}, {"url": url, "id": 3})
        run = ["fetch", "--requests", jobs, "-o", str(out), "--concurrency", "1", "-s"]
        assert main(run) == 0
    first, second, third = records(out)
    assert list(first) == ["url", "id", "status", "body", "attempts", "waited", "error"]
    assert first["id"] == "é"
    assert "id" not in second
    assert second["line"] == 3
    assert third["id"] == 3


def test_list_is_read_from_standard_input(out: Path) -> None:
    with background() as server, start("fetch", "--requests", "-", "-o", str(out)) as fetch:
        lines = [json.dumps({"url": str(server.url), "id": n}) for n in range(3)]
        _, messages = fetch.communicate("\n".join(lines), timeout=60)
    assert fetch.returncode == 0, messages
    assert sorted(record["id"] for record in records(out)) == [0, 1, 2]


def test_bodies_of_one_url_are_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "answers"

    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    with background(handler=echo) as server:
        jobs = listed(tmp_path, *({"url": str(server.url), "id": n, "json": n} for n in range(9)))
        assert main(["fetch", "--requests", jobs, "--output-dir", str(folder), "-s"]) == 0
    found = {record["id"]: folder / record["file"] for record in records(folder / "index.jsonl")}
    assert {own: path.read_text() for own, path in found.items()} == {n: str(n) for n in range(9)}
    # Not host-2.txt, host-3.txt and so on, each found by looking for all before it.
    assert len({path.stem.split("-")[1] for path in found.values()}) == 9


# ---- invalid lines ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"url": ', "is no JSON: Expecting value at column 8"),
        ('{"url": "http://a/", "cost": NaN}', "is no JSON: NaN is no number"),
        ('["http://a/"]', "is no JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ("{}", "the url is missing"),
        ({"url": " "}, "the url is missing"),
        ({"url": 5}, "url must be a text, got a value of another type"),
        ({"url": "ftp://a/"}, "the url is no URL: it does not begin with http:// or https://"),
        ({"url": "http://a/", "methd": "GET"}, "has the unknown field 'methd'; there are url, "),
        ({"url": "http://a/", "method": "GET /"}, "method must be a method such as GET"),
        ({"url": "http://a/", "json": {}, "data": ""}, "has both json and data"),
        ({"url": "http://a/", "data": {}}, "data must be a text"),
        ({"url": "http://a/", "data": "\ud800"}, "data has half of a surrogate pair"),
        ('{"url": "http://a/", "json": 1e999}', "json has a number that is too great"),
        ({"url": "http://a/", "headers": ["A: b"]}, "headers must be an object"),
        ({"url": "http://a/", "headers": {"A": 1}}, "the header 'A' must be a text"),
        ({"url": "http://a/", "headers": {"A": "b\r\nC: d"}}, "a value with a control character"),
        ({"url": "http://a/", "headers": {"A:b": "c"}}, "a name with other characters"),
        ({"url": "http://a/", "headers": {"content-length": "5"}}, "must not have content-length"),
        ({"url": "http://a/", "cost": -1}, "cost must be a finite number of tokens, 0 or more"),
        ('{"url": "http://a/", "cost": 1e999}', "cost must be a finite number of tokens"),
        ({"url": "http://a/", "cost": "1"}, "cost must be a finite number of tokens"),
        ({"url": "http://a/", "cost": {"tokens": 1}}, "cost must be a number, as the limits name"),
        ({"url": "http://a/", "key": "a"}, "key chooses one of several limits: give --per-host"),
        ({"url": "http://a/", "id": 1.5}, "id must be a text or a whole number, got 1.5"),
        ({"url": "http://a/", "id": True}, "id must be a text or a whole number, got True"),
    ],
)
def test_invalid_line_becomes_a_record(
    line: Json | str, problem: str, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with background() as server:
        jobs = listed(tmp_path, line, {"url": str(server.url), "id": "good"})
        run = ["fetch", "--requests", jobs, "-o", str(out), "--concurrency", "1"]
        assert main(run) == 1
        assert server.audit.sent == 1
    bad, good = records(out)
    assert bad["line"] == 1
    assert bad["error"].startswith(f"{jobs}, line 1: ")
    assert problem in bad["error"]
    assert (good["id"], good["error"]) == ("good", None)
    messages = capsys.readouterr().err
    place = f"{bad['url']} (line 1): " if bad["url"] else ""
    assert messages.startswith(f"{place}{jobs}, line 1: ")
    assert messages.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("cost", "problem"),
    [
        (5, "cost must be an object of requests, tokens, got 5"),
        ({"seats": 1}, "cost may name requests, tokens, got 'seats'"),
        ({"tokens": -1}, "the cost in tokens must be a finite number of tokens, 0 or more, got -1"),
        ({"tokens": 1001}, "cost must be at most 1000 of 'tokens', got 1001"),
    ],
)
def test_invalid_cost_of_resources_becomes_a_record(
    cost: object, problem: str, tmp_path: Path, out: Path
) -> None:
    with background() as server:
        jobs = listed(tmp_path, {"url": str(server.url), "id": "a", "cost": cost})
        rates = ["--rate", "requests=9/s", "--rate", "tokens=1000/s"]
        assert main(["fetch", "--requests", jobs, "-o", str(out), "-s", *rates]) == 1
        assert server.audit.sent == 0
    (record,) = records(out)
    assert record["id"] == "a"
    assert problem in record["error"]


def test_second_line_with_an_id_becomes_a_record(tmp_path: Path, out: Path) -> None:
    with background() as server:
        url = str(server.url)
        jobs = listed(tmp_path, *({"url": url, "id": own} for own in ("a", 1, "1", "a")))
        run = ["fetch", "--requests", jobs, "-o", str(out), "--concurrency", "1", "-s"]
        assert main(run) == 1
        assert server.audit.sent == 3
    last = records(out)[3]
    assert last["line"] == 4
    assert last["error"] == f"{jobs}, line 4: an earlier line has the id 'a' too"


def test_too_long_line_becomes_a_record(tmp_path: Path, out: Path) -> None:
    with background() as server:
        url = str(server.url)
        longest = JsonReader.longest
        jobs = listed(tmp_path, {"url": url, "data": "x" * longest}, {"url": url, "data": "x" * 99})
        run = ["fetch", "--requests", jobs, "-o", str(out), "--concurrency", "1", "-s"]
        assert main(run) == 1
        assert server.audit.sent == 1
    assert records(out)[0]["error"] == f"{jobs}, line 1: is longer than {longest} bytes"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(["url", "method", "headers", "json", "data", "cost", "key", "id", "x"])


@given(
    line=st.binary()
    | st.dictionaries(fields, json_values).map(
        lambda line: json.dumps({"url": "http://a/", **line}).encode()
    ),
    resources=st.sampled_from([(), ("tokens",)]),
)
def test_any_line_is_a_job_or_a_problem(line: bytes, resources: tuple[str, ...]) -> None:
    reader = JsonReader({"A": "b"}, resources=resources, keyed=True)
    job = reader.read(Line("list", 7, line, len(line)))
    if job is not None:
        assert (job.request is None) == bool(job.problem)
        assert (job.id is None) == (job.number == 7)


def test_no_header_is_written_or_printed(tmp_path: Path, out: Path) -> None:
    with background() as server:
        url = str(server.url)
        token = {"Authorization": f"Bearer {SECRET}"}
        jobs = listed(
            tmp_path,
            {"url": url, "headers": token},
            {"url": url, "headers": {"Authorization": f"Bearer {SECRET}\n"}, "id": 1},
            {"url": url, "headers": {"Authorization": [SECRET]}},
            {"url": url, "headers": {f"Authorization: {SECRET}": ""}},
            {"url": url, "headers": f"Authorization: {SECRET}"},
            {"url": url, "headers": {"Authorization": f"Bearer {SECRET}\ud800"}},
            {"url": f"{url}\n", "method": f"{url} ", "headers": token},
            json.dumps({"headers": token, "url": url})[:-1],
            {"url": url.replace("//", f"//me:{SECRET}@"), "headers": token, "cost": -1},
        )
        run = ["fetch", "--requests", jobs, "-H", f"X-Key: {SECRET}", "-o", str(out)]
        with start(*run) as fetch:
            printed, messages = fetch.communicate(timeout=60)
    assert fetch.returncode == 1
    assert len(records(out)) == 9
    assert SECRET not in out.read_text() + printed + messages


# ---- resuming --------------------------------------------------------------------------------


def test_resume_sends_what_has_no_record_by_id_or_line(tmp_path: Path, out: Path) -> None:
    sent: list[str] = []

    async def note(request: web.Request) -> web.Response:
        sent.append(await request.text())
        return web.Response()

    with background(handler=note) as server:
        url = str(server.url)
        lines: list[Json | str] = [
            {"url": url, "id": "a", "data": "a"},
            {"url": url, "data": "line 2"},
            {"url": url, "id": 3, "data": "3"},
            {"url": url, "data": "line 4"},
            "no JSON",
            {"url": url, "id": "a", "data": "another a"},
        ]
        jobs = listed(tmp_path, *lines)
        run = ["fetch", "--requests", jobs, "-o", str(out), "--resume", "--concurrency", "1", "-s"]
        assert main(run) == 1
        whole = out.read_bytes().splitlines(keepends=True)
        for lost in ([0], [1, 2], [3, 4], [0, 5], [5], [0, 1, 2, 3, 4, 5]):
            # The other records, in another order.
            out.write_bytes(b"".join(whole[n] for n in reversed(range(6)) if n not in lost))
            sent.clear()
            main(run)
            assert sent == [lines[n]["data"] for n in lost if n < 4]  # type: ignore[index]
            assert len(records(out)) == 6


# ---- limits ----------------------------------------------------------------------------------


def test_cost_counts_against_the_rate(tmp_path: Path, out: Path) -> None:
    with background() as server:
        jobs = listed(tmp_path, *({"url": str(server.url), "cost": 4} for _ in range(3)))
        assert seconds("--requests", jobs, "-o", str(out), "--rate", "4/200ms") >= 0.4


def test_cost_counts_in_each_resource(tmp_path: Path, out: Path) -> None:
    rates = ["--rate", "requests=100/s", "--rate", "tokens=10/200ms"]
    with background() as server:
        cost = {"tokens": 10}
        jobs = listed(tmp_path, *({"url": str(server.url), "cost": cost} for _ in range(3)))
        assert seconds("--requests", jobs, "-o", str(out), *rates) >= 0.4
        out.unlink()
        jobs = listed(tmp_path, *({"url": str(server.url)} for _ in range(30)))
        assert seconds("--requests", jobs, "-o", str(out), "--rate", "requests=10/200ms") >= 0.4


def test_burst_bounds_the_requests_of_named_rates(tmp_path: Path, out: Path) -> None:
    rates = ["--rate", "requests=10/s", "--rate", "tokens=100/s", "--burst", "1"]
    with background() as server:
        jobs = listed(tmp_path, *({"url": str(server.url)} for _ in range(5)))
        assert seconds("--requests", jobs, "-o", str(out), *rates) >= 0.4


def test_key_chooses_the_limit(tmp_path: Path, out: Path) -> None:
    with background() as server:
        keys = ["a", "a", "a", "b"]
        jobs = listed(
            tmp_path, *({"url": f"{server.url}{n}", "key": key} for n, key in enumerate(keys))
        )
        assert seconds("--requests", jobs, "-o", str(out), "--per-host", "1/300ms") >= 0.6
        # The other key does not wait behind the first one.
        order = [request.path for request in server.audit.requests]
    assert order.index("/3") < order.index("/1") < order.index("/2")


def test_resources_of_each_key_below_a_common_rate(tmp_path: Path, out: Path) -> None:
    limits = ["--per-host", "requests=99/s,tokens=10/300ms", "--rate", "99/s"]
    with background() as server:
        jobs = listed(
            tmp_path,
            *({"url": str(server.url), "key": key, "cost": {"tokens": 10}} for key in "aab"),
        )
        assert seconds("--requests", jobs, "-o", str(out), *limits) >= 0.3
    assert len(records(out)) == 3


def test_post_is_retried_when_throttled_but_not_after_500(tmp_path: Path, out: Path) -> None:
    statuses = {"/throttled": [429, 200], "/broken": [500, 200]}

    async def fail_first(request: web.Request) -> web.Response:
        status = statuses[request.path].pop(0)
        return web.Response(status=status, headers={"Retry-After": "0"})

    with background(handler=fail_first) as server:
        jobs = listed(
            tmp_path,
            *({"url": f"{server.url}{path}", "json": 1} for path in ("throttled", "broken")),
        )
        run = ["fetch", "--requests", jobs, "-o", str(out), "--concurrency", "1", "-s"]
        assert main(run) == 1
    found = [(record["status"], record["attempts"]) for record in records(out)]
    assert found == [(200, 2), (500, 1)]


# ---- language models -------------------------------------------------------------------------


def serving(make: Callable[[], FakeAPI]) -> AbstractContextManager[tuple[FakeAPI, str]]:
    """Return a context that serves a fake in a thread."""

    @asynccontextmanager
    async def serve() -> AsyncGenerator[tuple[FakeAPI, str]]:
        fake = make()
        async with fake.serve() as url:
            yield fake, url

    return in_thread(serve)


def chats(url: str, count: int, **more: object) -> list[Json]:
    body: Json = {"model": "small", "max_tokens": 1000}
    return [
        {
            "id": f"call-{n}",
            "url": f"{url}/v1/chat/completions",
            "json": {**body, "messages": prompt_of(n)},
            **more,
        }
        for n in range(count)
    ]


def test_hundred_calls_of_openai_are_never_throttled(tmp_path: Path, out: Path) -> None:
    rates = ["--rate", "requests=600/5s", "--rate", "tokens=60000/5s"]
    with serving(lambda: FakeOpenAI(600, 60_000, period=5, latency=0.02)) as (fake, url):
        jobs = listed(tmp_path, *chats(url, 100))
        run = ["fetch", "--requests", jobs, "-o", str(out), "--profile", "openai", "-s"]
        assert main([*run, *rates]) == 0
        assert (fake.requests, fake.throttled) == (100, 0)
        # More than the server admits at once: without charges it would have throttled some.
        assert fake.used["tokens"] > 60_000
    found = {record["id"]: record for record in records(out)}
    assert found.keys() == {f"call-{n}" for n in range(100)}
    answers = [json.loads(record["body"]) for record in found.values()]
    assert sum(answer["usage"]["total_tokens"] for answer in answers) == fake.used["tokens"]


def test_calls_are_settled_by_their_usage(tmp_path: Path, out: Path) -> None:
    rates = ["--rate", "requests=600/min", "--rate", "tokens=60000/min"]
    with serving(lambda: FakeOpenAI(600, 1_000_000, latency=0.02)) as (_, url):
        jobs = listed(tmp_path, *chats(url, 6, cost={"tokens": 30_000}))
        run = ["--requests", jobs, "-o", str(out), "--profile", "openai"]
        # As they are charged, two calls are a minute's, and six take two minutes.
        assert seconds(*run, *rates) < 30


def test_call_above_the_limit_is_charged_the_whole_limit(tmp_path: Path, out: Path) -> None:
    with serving(lambda: FakeOpenAI(600, 10_000, latency=0.02)) as (_, url):
        jobs = listed(tmp_path, *chats(url, 1))
        run = ["--requests", jobs, "-o", str(out), "--profile", "openai"]
        assert main(["fetch", *run, "--rate", "tokens=500/s"]) == 0


def test_budget_of_a_profile_trickles_back(tmp_path: Path, out: Path) -> None:
    with background() as server:
        costs = ({"tokens": 60}, {"tokens": 1})
        jobs = listed(tmp_path, *({"url": str(server.url), "cost": cost} for cost in costs))
        run = ["--requests", jobs, "-o", str(out), "--profile", "openai"]
        # A window would be free again after a minute.
        assert 0.9 <= seconds(*run, "--rate", "tokens=60/min") < 30


@pytest.mark.parametrize(
    ("profile", "resources"),
    [("openai", ["tokens"]), ("anthropic", ["input_tokens", "output_tokens"])],
)
def test_server_of_a_profile_refills_before_its_reset(
    profile: str, resources: list[str], tmp_path: Path, out: Path
) -> None:
    async def answer(_: web.Request) -> web.Response:
        headers: dict[str, str] = {}
        for name in resources:
            unit = name.replace("_", "-")
            headers[f"x-ratelimit-limit-{unit}"] = "60000"
            headers[f"x-ratelimit-remaining-{unit}"] = "0"
            headers[f"x-ratelimit-reset-{unit}"] = "60"
        return web.Response(headers=headers)

    with background(handler=answer) as server:
        cost = dict.fromkeys(resources, 25)
        jobs = listed(tmp_path, *({"url": str(server.url), "cost": cost} for _ in range(3)))
        rates = [f"--rate={name}=60000/min" for name in resources]
        run = ["--requests", jobs, "-o", str(out), "--profile", profile, "--concurrency", "1"]
        # Without the profile of the headers each call would wait for the reset, a minute.
        assert 0.1 < seconds(*run, *rates) < 30


def test_calls_of_anthropic_are_never_throttled(tmp_path: Path, out: Path) -> None:
    rates = ["--rate", "requests=600/5s;input_tokens=60000/5s;output_tokens=10000/5s"]
    with serving(lambda: FakeAnthropic(600, 60_000, 10_000, period=5, latency=0.02)) as (fake, url):
        body: Json = {"model": "small", "max_tokens": 1000}
        jobs = listed(
            tmp_path,
            *(
                {"url": f"{url}/v1/messages", "json": {**body, "messages": prompt_of(n)[1:]}}
                for n in range(40)
            ),
        )
        run = ["fetch", "--requests", jobs, "-o", str(out), "--profile", "anthropic", "-s"]
        assert main([*run, *rates]) == 0
        assert (fake.requests, fake.throttled) == (40, 0)
        assert fake.used["output_tokens"] > 10_000


def test_profile_retries_a_call_after_500(tmp_path: Path, out: Path) -> None:
    def fails_first() -> FakeAPI:
        return FakeOpenAI(600, 60_000, latency=0.02, failures=(500,))

    with serving(fails_first) as (_, url):
        jobs = listed(tmp_path, *chats(url, 1))
        run = ["fetch", "--requests", jobs, "-o", str(out), "--profile", "openai", "-s"]
        assert main([*run, "--rate", "tokens=60000/min"]) == 0
    assert records(out)[0]["attempts"] == 2


def test_retries_bound_the_attempts_of_a_profile(tmp_path: Path, out: Path) -> None:
    def fails_always() -> FakeAPI:
        return FakeOpenAI(600, 60_000, latency=0.02, failures=(500,) * 9)

    with serving(fails_always) as (_, url):
        jobs = listed(tmp_path, *chats(url, 1))
        run = ["fetch", "--requests", jobs, "-o", str(out), "--profile", "openai", "-s"]
        assert main([*run, "--rate", "tokens=60000/min", "--retries", "1"]) == 1
    assert records(out)[0]["attempts"] == 2


# ---- invalid options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--requests", "no/such/file"], "no/such/file cannot be read: No such file"),
        (["--requests", "jobs", "http://a/"], "--requests is the whole list: leave out URLs"),
        (["--requests", "jobs", "-i", "x"], "--requests is the whole list: leave out URLs"),
        (["--requests", "jobs", "-d", "x"], "each line of --requests has its own method and body"),
        (["--requests", "jobs", "-X", "PUT"], "each line of --requests has its own method"),
        (["--requests", "jobs", "-I"], "each line of --requests has its own method"),
        (["http://a/", "--rate", "tokens=fast"], "--rate: cannot read 'fast' as a rate"),
        (["http://a/", "--rate", "=5/s"], "--rate: must be a rate such as 10/s, or with its"),
        (
            ["http://a/", "--rate", "5/s", "--rate", "tokens=9/s"],
            "only some of the rates of --rate name a resource, such as 'tokens'",
        ),
        (
            ["http://a/", "--rate", "tokens=9/s", "--per-host", "5/s"],
            "the rates of --rate name resources, and those of --per-host do not",
        ),
        (
            ["http://a/", "--rate", "tokens=9/s", "--burst", "1"],
            "burst may have the resources tokens, got 'requests'",
        ),
        (["http://a/", "--profile", "other"], "argument --profile: invalid choice: 'other'"),
        (
            ["http://a/", "--profile", "openai", "--rate", "500/min"],
            "--profile openai charges tokens: give their limits, such as --rate requests=",
        ),
        (
            ["http://a/", "--profile", "anthropic", "--rate", "tokens=9/s"],
            "--profile anthropic charges input_tokens and output_tokens",
        ),
    ],
)
def test_invalid_options_give_an_error_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fetch", *arguments])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_requests_as_output_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = listed(tmp_path, {"url": "http://127.0.0.1:1/"})
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "--requests", jobs, "-o", jobs])
    assert ended.value.code == 2
    assert "--requests and --output are the same file" in capsys.readouterr().err
