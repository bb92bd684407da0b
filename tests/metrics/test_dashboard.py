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

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.dashboard import serve, server
from aiothrottle.events import Observer
from aiothrottle.stores import MemoryStore
from tests.metrics.causing import outage, streaming
from tests.support.browser import needs_browser, open_tab

FOLDER = files("aiothrottle.dashboard")
Shown: TypeAlias = dict[str, RateLimiter | KeyedRateLimiter]
FILES = {"": "page.html", "page.css": "page.css", "page.js": "page.js"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample and send each twenty milliseconds."""
    monkeypatch.setattr(server, "_TICK", 0.02)
    monkeypatch.setattr("aiothrottle.dashboard.feed._AVERAGED", 0.4)


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


@pytest.mark.usefixtures("quick")
async def test_shared_use_counts_all_limiters_of_the_store() -> None:
    store = MemoryStore()
    shown, other = (RateLimiter("100/min", store=store, key="k", guard=0.0) for _ in range(2))
    async with shown, other, serve(shown) as url, streaming(url) as received:
        await shown.acquire(10)
        await other.acquire(30)
        while (await received())["limiters"][0]["inUse"] != pytest.approx(0.4, abs=0.001):
            pass


@pytest.mark.usefixtures("quick")
async def test_page_that_is_late_gets_the_past() -> None:
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


async def test_only_this_machine_is_answered(caplog: pytest.LogCaptureFixture) -> None:
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
    observers = 0

    def observe(self, observer: Observer) -> Callable[[], None]:
        stop = super().observe(observer)
        self.observers += 1

        def stopped() -> None:
            stop()
            self.observers -= 1

        return stopped


@pytest.mark.usefixtures("quick")
async def test_limiters_are_streamed_by_name_until_the_server_ends() -> None:
    one, keyed, facts = RateLimiter(9), Observed(100), {"URLs done": "0"}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve({"one": one, "each": keyed}, facts=facts.copy))
        async with streaming(url) as received:
            first = last = await received()
            await keyed.acquire("key", 7)
            facts["URLs done"] = "7"
            await stack.aclose()
            while (event := await received()) != "end":
                last = event
    assert (first["facts"], last["facts"]) == ({"URLs done": "0"}, {"URLs done": "7"})
    assert first["limiters"][0]["at"] < last["limiters"][0]["at"]
    for state, granted in ((first, 0), (last, 1)):
        assert [(it["name"], it["granted"]) for it in state["limiters"]] == [
            ("one", 0),
            ("each", granted),
        ]
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(url)
    assert keyed.observers == 0


async def test_server_ends_though_a_page_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LAST_WORDS", 0.1)
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


@pytest.mark.usefixtures("quick")
async def test_closed_pages_leave_room_and_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        first = await connect(STREAM)
        for _ in range(40):
            (await connect(STREAM)).close()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # it writes once more
        assert is_open(first)
    assert caplog.messages == []


# ---- appearance --------------------------------------------------------------------------------


def text_of(selector: str) -> str:
    return f"document.querySelector('{selector}').textContent"


@needs_browser
@pytest.mark.usefixtures("quick")
async def test_browser_shows_the_past_the_present_and_the_end() -> None:
    markup = "<img src=x onerror=alert(1)>"
    keyed = KeyedRateLimiter("200/s", concurrency_limit=30)
    facts = {markup: markup}

    def label(key: object) -> str:
        return str(key).lstrip("AB")

    async with AsyncExitStack() as stack:
        stored, end_outage = await stack.enter_async_context(outage())
        shown: Shown = {markup: RateLimiter(["40/s", "1500/min"]), "host": keyed, "stored": stored}
        tab = await stack.enter_async_context(open_tab())
        async with serve(shown, facts=facts.copy, label=label) as url:
            for key in ("Aapi.example.org", "Bapi.example.org"):  # with the same label
                await keyed.acquire(key)
            await asyncio.sleep(1.5)
            await tab.open(url)
            line = "document.querySelector('path.rate')?.getAttribute('d')"
            await tab.until(f"Boolean({line})")  # the page is live before it has drawn
            begin = float((await tab.evaluate(line))[1:].partition(",")[0])
            assert begin < 119.5, "half a second before the page was opened"
            spans = "[...document.querySelectorAll('.axis span')].map((it) => it.textContent)"
            assert (await tab.evaluate(spans))[:3] == ["2 min ago", "1 min ago", "now"]
            shared = "document.querySelector('[data-is=inUse]').checkVisibility()"
            assert await tab.evaluate(shared) is False, "it has no store"

            assert await tab.evaluate("document.querySelectorAll('tbody tr').length") == 2
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
            rows = "[...document.querySelectorAll('tbody tr')]"
            row = f"{rows}.find((row) => row.textContent.startsWith('new'))"
            await tab.until(f"{row}?.children[4].textContent === '40'")
            keyed.pause("new.example.org", 600)
            await tab.until(f"/^for (10|9) min/.test({row}.children[7].textContent)")
            # The only element that a screen reader reads out.
            paused = "/^new.example.org is paused for (10 min 0|9 min [0-9]+) s$/"
            await tab.until(f"{paused}.test({text_of('#news')})")
            of_cells = f"[...{row}.children].map((cell) => cell.getAttribute('role'))"
            assert await tab.evaluate(of_cells) == ["rowheader"] + ["cell"] * 7

            lines = "[...document.querySelectorAll('.store')].filter((it) => !it.hidden)"
            assert await tab.evaluate(f"{lines}.length") == 0
            await stored.acquire()
            await tab.until(f"/has not answered for [0-9]+ s/.test({lines}[0]?.textContent)")
            await end_outage()
            await tab.until(f"{lines}.length === 0")
            await tab.until(f"{text_of('#news')} === 'stored: the store answers again'")
        await tab.until(f"{text_of('#state')}.startsWith('ended')")
        assert tab.errors == []
