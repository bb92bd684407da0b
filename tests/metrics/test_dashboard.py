"""The live page over real HTTP on loopback: its contents, its access rules, and its end."""

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, TypeAlias

import aiohttp
import pytest
from redis.asyncio import Redis

from aiothrottle import AdaptiveRate, Cooldown, KeyedRateLimiter, RateLimiter
from aiothrottle.dashboard import serve, server
from aiothrottle.events import Observer
from aiothrottle.stores.redis import RedisStore
from tests.metrics.causing import outage, retries, streaming
from tests.support.browser import needs_browser, open_tab
from tests.support.servers import Valkey

FOLDER = files("aiothrottle.dashboard")
Shown: TypeAlias = dict[str, RateLimiter | KeyedRateLimiter]
FILES = {"": "page.html", "page.css": "page.css", "page.js": "page.js"}
COUNTS = "granted inFlight waiting rejected throttled retried pausedFor paused"


async def status(url: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.get(url, headers=named) as response:
        return response.status


# ---- contents ----------------------------------------------------------------------------------


async def test_page_is_served_and_loads_nothing_else() -> None:
    async with serve(RateLimiter(10)) as url, aiohttp.ClientSession() as session:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        for path, name in FILES.items():
            async with session.get(url + path) as response:
                assert response.status == 200
                text = await response.text()
            assert text == (FOLDER / name).read_text(encoding="utf-8")
            assert not re.search(r"(https?:)?//[a-z]", text), "an address outside"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        async with session.get(url + "nothing") as response:
            assert response.status == 404
        for method, path in (("POST", ""), ("HEAD", "events")):
            async with session.request(method, url + path) as response:
                assert response.status == 405


async def test_stream_reports_the_current_state() -> None:
    limiter = RateLimiter(["10/s", "300/min"], concurrency_limit=4)
    facts = {"URLs done": "7"}
    async with serve(limiter, facts=lambda: facts) as url, streaming(url) as received:
        first = await received()
        assert first["facts"] == {"URLs done": "7"}
        (before,) = first["limiters"]
        limits: dict[str, Any] = {"limits": ["10 per 1 s", "300 per 60 s"], "perSecond": 5.0}
        keys: dict[str, Any] = {"keys": None, "keyCount": 0, "pauses": []}
        unknown = dict.fromkeys(("rate", "inUse", "storeDownFor"))
        zeros = dict.fromkeys(COUNTS.split(), 0)
        assert before == {"name": limiter.name, "slots": 4, **limits, **keys, **unknown, **zeros}
        await retries(limiter, 500)
        permit = await limiter.acquire(2)
        permit.report_throttled(retry_after=60)
        await limiter.try_acquire()
        second = await received()
        while not second["limiters"][0]["rejected"]:  # of the time of the retries
            second = await received()
        (after,) = second["limiters"]
        assert second["at"] > first["at"]
        expected = {"granted": 3, "inFlight": 1, "rejected": 1, "throttled": 1, "retried": 1}
        assert {name: after[name] for name in expected} == expected
        assert 50 < after["pausedFor"] <= 67
        (pause,) = after["pauses"]
        assert pause["key"] == "10/s and 300/min"
        assert pause["reason"] == "the server throttled a request and asked for a pause"


async def test_limiters_and_their_keys_are_shown_separately() -> None:
    parent = RateLimiter(1000)
    keyed = KeyedRateLimiter(100, parent=parent)
    shown: Shown = {"all": parent, "hosts": keyed, "found": RateLimiter(AdaptiveRate(7, 1, 100))}
    async with serve(shown) as url, streaming(url) as received:
        await keyed.acquire("b.example.org")
        await keyed.acquire("a.example.org")
        await keyed.acquire("a.example.org")
        keyed.pause("b.example.org", 60)
        await received()
        everything, hosts, found = (await received())["limiters"]
    assert everything["granted"] == hosts["granted"] == 3
    assert [key["name"] for key in hosts["keys"]] == ["a.example.org", "b.example.org"]
    assert [key["granted"] for key in hosts["keys"]] == [2, 1]
    assert [key["pausedFor"] > 0 for key in hosts["keys"]] == [False, True]
    assert hosts["pauses"][0]["key"] == "b.example.org"
    assert found["limits"] == ["7 per 1 s"]


@pytest.mark.parametrize(
    ("limiter", "limits"),
    [
        (RateLimiter({"tokens": "9/min"}), ["tokens 9/min"]),
        (RateLimiter({"requests": 2, "tokens": 9}), ["requests 2/s, tokens 9/s"]),
        (RateLimiter(algorithm=Cooldown(3, 60)), ["Cooldown(n=3, period=60)"]),
        (RateLimiter(concurrency_limit=3), []),
        (RateLimiter("server"), []),
    ],
)
async def test_limits_without_a_rate_of_requests_are_shown(
    limiter: RateLimiter, limits: list[str]
) -> None:
    async with serve(limiter) as url, streaming(url) as received:
        assert (await received())["limiters"][0]["limits"] == limits


async def test_shared_use_counts_all_processes(valkey: Valkey) -> None:
    async with Redis(port=valkey.port) as first, Redis(port=valkey.port) as second:
        shown, other = (
            RateLimiter("100/min", store=RedisStore(client), key="shared", guard=0.0)
            for client in (first, second)
        )
        async with shown, other, serve(shown) as url, streaming(url) as received:
            assert (await received())["limiters"][0]["inUse"] is None, "no store was asked yet"
            await shown.acquire(10)
            await other.acquire(30)
            in_use = None
            while in_use != pytest.approx(0.4, abs=0.001):
                in_use = (await received())["limiters"][0]["inUse"]


async def test_page_that_is_late_gets_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TICK", 0.02)
    monkeypatch.setattr("aiothrottle.dashboard.feed._AVERAGED", 0.2)
    async with serve(RateLimiter(10)) as url, aiohttp.ClientSession() as session:
        await asyncio.sleep(0.5)
        async with session.get(url + "events") as response:
            first = await response.content.readuntil(b"\n\n")
    (history,) = json.loads(first.removeprefix(b"event: history\ndata: "))
    assert len(history["points"]) >= 3


# ---- access ------------------------------------------------------------------------------------


# The path, the headers, and the status.
ACCESS: list[tuple[str, dict[str, str], int]] = [
    ("", {}, 200),
    ("", {"Host": "localhost:80"}, 200),
    ("", {"Host": "[::1]:80"}, 200),
    ("", {"Host": "evil.example"}, 403),
    ("", {"Host": "127.0.0.1.evil.example:80"}, 403),
    ("", {"Host": ""}, 403),
    ("", {"Host": "a b"}, 403),
    ("", {"Host": "me:[::1]:808.@"}, 403),
    ("", {"Host": "xn--le99999999999999999es"}, 403),
    ("", {"Origin": "http://evil.example"}, 403),
    ("", {"Origin": "null"}, 403),
    ("", {"Host": "localhost:80", "Origin": "http://localhost:80"}, 200),
    ("", {"Host": "localhost:80", "Origin": "http://localhost:81"}, 403),
    ("", {"Sec-Fetch-Site": "none"}, 200),
    ("page.js", {"Sec-Fetch-Site": "same-origin"}, 200),
    ("page.js", {"Sec-Fetch-Site": "cross-site"}, 403),
    ("events", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
    ("events", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ("", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
]


async def test_only_this_machine_is_answered_or_a_warning_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve(RateLimiter(10)) as url:
        found = [(*it[:2], await status(url + it[0], **it[1])) for it in ACCESS]
    assert found == ACCESS
    async with serve(RateLimiter(10)):
        assert caplog.messages == []
    async with serve(RateLimiter(10), host="0.0.0.0") as url:
        assert await status(url) == 200
    assert caplog.messages == ["the live page is open to others, on 0.0.0.0"]


async def test_wrong_arguments_are_named_and_leave_nothing() -> None:
    keyed = Observed(10)
    with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
        async with serve({"good": keyed, "bad": "10/s"}):  # type: ignore[dict-item]
            pass
    for name, value, message in (
        ("host", None, "such as '127.0.0.1', got None"),
        ("host", "", "such as '127.0.0.1', got ''"),
        ("port", "8321", "such as 8321, got '8321'"),
        ("port", True, "such as 8321, got True"),
        ("port", 65536, "to 65535, got 65536"),
        ("facts", "7", "facts must be a function or None"),
        ("label", "host", "label must be a function or None"),
    ):
        arguments: dict[str, Any] = {name: value}
        with pytest.raises((TypeError, ValueError), match=message):
            async with serve(keyed, **arguments):
                pass
    async with serve(RateLimiter(1)) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            async with serve(keyed, port=port):
                pass
    assert keyed.observers == 0


# ---- the end -----------------------------------------------------------------------------------


class Observed(KeyedRateLimiter):
    """A limiter that counts its observers."""

    observers = 0

    def observe(self, observer: Observer) -> Callable[[], None]:
        stop = super().observe(observer)
        self.observers += 1

        def stopped() -> None:
            stop()
            self.observers -= 1

        return stopped


async def test_server_ends_and_notifies_open_pages() -> None:
    keyed, facts = Observed(100), {"URLs done": "0"}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(keyed, facts=lambda: facts))
        async with streaming(url) as received:
            await received()
            await keyed.acquire("key", 7)
            facts["URLs done"] = "7"
            await stack.aclose()
            last: Any = {}
            while (event := await received()) != "end":
                last = event
    assert last["facts"] == {"URLs done": "7"}
    assert last["limiters"][0]["granted"] == 1
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(url)
    assert keyed.observers == 0


async def test_server_ends_though_a_page_reads_nothing() -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(RateLimiter(10), facts=lambda: LONG))
        async with connecting(url) as connect:
            await connect(STREAM)
            await asyncio.sleep(0.1)
            await stack.aclose()
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(url)


async def test_server_ends_when_its_owner_is_cancelled() -> None:
    keyed = Observed(10)
    opened = asyncio.get_running_loop().create_future()

    async def own() -> None:
        async with serve(keyed) as url:
            opened.set_result(url)
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    async with streaming(await opened) as received:
        await received()
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner
        while await received() != "end":
            pass
    assert keyed.observers == 0


# ---- idle connections and unread streams -------------------------------------------------------

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = {"fact": "x" * 10_000_000}  # more than the sockets take
STREAM = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def connecting(url: str) -> AsyncGenerator[Callable[[bytes], Awaitable[socket.socket]]]:
    """Return a function that connects and sends; closes all connections at the end."""
    port = int(url.rstrip("/").rpartition(":")[2])
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:

        async def connect(sent: bytes) -> socket.socket:
            opened = stack.enter_context(socket.socket())
            opened.setblocking(False)
            await loop.sock_connect(opened, ("127.0.0.1", port))
            await loop.sock_sendall(opened, sent)
            return opened

        yield connect


async def until_closed(opened: socket.socket) -> int:
    """Return how many more bytes arrive."""
    loop = asyncio.get_running_loop()
    count = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            while piece := await loop.sock_recv(opened, 1 << 16):
                count += len(piece)
    return count


def is_open(opened: socket.socket) -> bool:
    """Return whether the server keeps it open; reads what has arrived."""
    with suppress(ConnectionError):
        try:
            while opened.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
    return False


async def test_connection_without_a_request_in_time_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server, "_IDLE", 0.2)
    loop = asyncio.get_running_loop()
    async with (
        serve(RateLimiter(10)) as url,
        connecting(url) as connect,
        streaming(url) as received,
    ):
        opened = [await connect(sent) for sent in (b"", HALF, WHOLE, WHOLE + HALF)]
        dripping = await connect(HALF)
        with suppress(ConnectionError):
            for _ in range(200):
                await loop.sock_sendall(dripping, b"x")
                await asyncio.sleep(0.05)
            pytest.fail("the dripping head was not closed in time")
        came = [await until_closed(each) > 0 for each in opened]
        for _ in range(2):
            assert (await received())["limiters"], "a stream is no idle connection"
    assert came == [False, False, True, True]
    assert caplog.messages == []


async def test_many_half_open_requests_leave_room() -> None:
    async with (
        serve(RateLimiter(10)) as url,
        connecting(url) as connect,
        streaming(url) as received,
    ):
        await received()
        half = [await connect(HALF) for _ in range(200)]
        assert await status(url) == 200
        assert await status(url + "events") == 200
        await received()
        still = [is_open(each) for each in half]
    assert 80 <= sum(still) <= 100
    assert not any(still[:100]), "the longest idle are closed first"


async def test_unread_stream_is_closed_before_the_oldest() -> None:
    facts: dict[str, str] = {}
    async with serve(RateLimiter(10), facts=lambda: facts) as url, connecting(url) as connect:
        read = [await connect(STREAM) for _ in range(10)]
        await asyncio.sleep(0.1)
        facts.update(LONG)
        unread = await connect(STREAM)
        await asyncio.sleep(0.1)
        facts.clear()
        for each in read:
            is_open(each)  # which reads it
        read += [await connect(STREAM) for _ in range(9)]
        await connect(STREAM)
        assert await until_closed(unread) < 10_000_000
        assert all(is_open(each) for each in read)


async def test_unread_stream_is_closed_and_buffers_little(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though each event is small, and the system keeps what is not read."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server, "_TICK", 0.001)
    monkeypatch.setattr(server, "_PATIENCE", 0.3)
    events = 0

    def facts() -> dict[str, str]:
        nonlocal events
        events += 1
        return {"fact": "x" * 5000}

    async with serve(RateLimiter(10), facts=facts) as url, connecting(url) as connect:
        unread = await connect(STREAM)
        before = -1
        while events > before:
            before = events
            await asyncio.sleep(0.3)
        assert 0 < events < 500, "2.5 MB"
        assert await until_closed(unread) <= events * 6000
    assert caplog.messages == []


async def test_closed_pages_leave_room_and_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        first = await connect(STREAM)
        for _ in range(40):
            (await connect(STREAM)).close()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.6)  # it writes once more
        assert is_open(first)
    assert caplog.messages == []


# ---- appearance --------------------------------------------------------------------------------


def text_of(selector: str) -> str:
    """Return the script of an element's text."""
    return f"document.querySelector('{selector}').textContent"


@needs_browser
async def test_browser_page_updates_and_shows_names_as_text() -> None:
    markup = "<img src=x onerror=alert(1)>"
    keyed = KeyedRateLimiter("200/s", concurrency_limit=30)
    shown: Shown = {markup: RateLimiter(["40/s", "1500/min"]), "each host": keyed}

    def label(key: object) -> str:
        return str(key).lstrip("AB")

    facts = {markup: markup}
    async with open_tab() as tab, serve(shown, facts=facts.copy, label=label) as url:
        for key in ("Aapi.example.org", "Bapi.example.org"):  # with the same label
            await keyed.acquire(key)
        await tab.open(url)
        await tab.until("document.querySelectorAll('tbody tr').length === 2")
        assert await tab.evaluate(text_of("h2")) == markup
        assert await tab.evaluate("document.querySelectorAll('img').length") == 0
        assert await tab.evaluate(text_of("#state")) == "live"
        times = (59.2, 600.0000001, 600.1, 7260)
        texts = [await tab.evaluate(f"seconds({it})") for it in times]
        assert texts == ["1 min 0 s", "10 min 0 s", "10 min 1 s", "2 h 1 min"]
        rates = (0, 10 / 3600, 0.96, 12.34, 250)
        texts = [await tab.evaluate(f"rounded({it})") for it in rates]
        assert texts == ["0.0", "0.0028", "0.96", "12.3", "250"]
        for _ in range(40):
            async with keyed.throttle("new.example.org"):
                pass
        await tab.until("document.body.textContent.includes('new.example.org')")
        rows = "[...document.querySelectorAll('tbody tr')]"
        row = f"{rows}.find((row) => row.textContent.startsWith('new'))"
        await tab.until(f"{row}.children[4].textContent === '40'")
        keyed.pause("new.example.org", 600)
        await tab.until(f"/^for (10|9) min/.test({row}.children[7].textContent)")
        # The only element that a screen reader reads out.
        paused = "/^new.example.org is paused for (10 min 0|9 min [0-9]+) s$/"
        await tab.until(f"{paused}.test({text_of('#news')})")
        roles = await tab.evaluate(f"[...{row}.children].map((cell) => cell.getAttribute('role'))")
        assert roles == ["rowheader"] + ["cell"] * 7
        assert tab.errors == []


@needs_browser
async def test_browser_page_reports_an_outage_and_the_end() -> None:
    hidden = "document.querySelector('.store').hidden"
    async with open_tab() as tab, outage() as (limiter, end):
        async with serve(limiter) as url:
            await tab.open(url)
            await tab.until(f"{text_of('#state')} === 'live'")
            assert await tab.evaluate(hidden) is True
            await limiter.acquire()
            await tab.until(f"/has not answered for [0-9]+ s/.test({text_of('.store')})")
            assert await tab.evaluate(hidden) is False
            await end()
            await tab.until(hidden)
            assert (
                await tab.evaluate(text_of("#news")) == f"{limiter.name}: the store answers again"
            )
        await tab.until(f"{text_of('#state')}.startsWith('ended')")
        assert tab.errors == []


@needs_browser
async def test_browser_that_is_late_shows_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TICK", 0.02)
    monkeypatch.setattr("aiothrottle.dashboard.feed._AVERAGED", 0.2)
    limiter = RateLimiter("100/s")
    async with serve(limiter) as url, open_tab() as tab:
        await asyncio.sleep(1.0)
        monkeypatch.setattr(server, "_TICK", 60.0)  # one event of the present
        await tab.open(url)
        line = "document.querySelector('path.rate')?.getAttribute('d')"
        await tab.until(f"Boolean({line})")  # the page is live before it has drawn
        assert (await tab.evaluate(line)).count("L") >= 10
        spans = "[...document.querySelectorAll('.axis span')].map((each) => each.textContent)"
        assert await tab.evaluate(spans) == ["2 min ago", "1 min ago", "now"]
        shared = "document.querySelector('[data-is=inUse]').checkVisibility()"
        assert await tab.evaluate(shared) is False, "it has no store"
        assert tab.errors == []
