"""The live page over real HTTP on loopback: its contents, its access rules, and its end."""

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, TypeAlias

import aiohttp
import pytest

from aiothrottle import AdaptiveRate, KeyedRateLimiter, RateLimiter
from aiothrottle._http.reports import report_retry
from aiothrottle.dashboard import connections, serve, server
from aiothrottle.dashboard.feed import Feed
from aiothrottle.events import StoreDown, StoreUp
from tests.browser import BROWSER, Tab, open_tab
from tests.metrics.streaming import streaming
from tests.virtually import now, virtual

FOLDER = files("aiothrottle.dashboard")
Shown: TypeAlias = dict[str, RateLimiter | KeyedRateLimiter]
FILES = {"": "page.html", "page.css": "page.css", "page.js": "page.js"}


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
        async with session.post(url) as response:
            assert response.status == 405


async def test_stream_reports_the_current_state() -> None:
    limiter = RateLimiter(["10/s", "300/min"], concurrency_limit=4)
    facts = {"URLs done": "7"}
    async with serve(limiter, facts=lambda: facts) as url, streaming(url) as received:
        first = await received()
        assert first["facts"] == {"URLs done": "7"}
        (before,) = first["limiters"]
        assert before == {
            "name": "limiter",
            "limits": ["10 per 1 s", "300 per 60 s"],
            "rate": None,
            "perSecond": 5.0,
            "slots": 4,
            "inUse": None,
            "granted": 0,
            "inFlight": 0,
            "waiting": 0,
            "rejected": 0,
            "throttled": 0,
            "retried": 0,
            "pausedFor": 0.0,
            "keys": None,
            "keyCount": 0,
            "pauses": [],
            "storeDownFor": None,
        }
        permit = await limiter.acquire(2)
        report_retry(permit, 2, 0.1)
        permit.report_throttled(retry_after=60)
        await limiter.try_acquire()
        second = await received()
        (after,) = second["limiters"]
        assert second["at"] > first["at"]
        counts = {"granted": 1, "inFlight": 1, "rejected": 1}
        assert after.items() >= {**counts, "throttled": 1, "retried": 1}.items()
        assert 50 < after["pausedFor"] <= 67
        (pause,) = after["pauses"]
        assert pause["key"] == "limiter"
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


@virtual
async def test_possible_secrets_are_not_shown() -> None:
    keyed = KeyedRateLimiter(100)
    feed = Feed("hosts", keyed, None, now)
    for key in ("sk-live-1234", ("user", "password"), "https://me:pw@example.org/", "localhost"):
        await keyed.acquire(key)
    keyed.pause("sk-live-1234", 5)
    shown = json.dumps(feed.snapshot())
    names = [key["name"] for key in feed.snapshot()["keys"] or ()]
    assert names == ["key 1", "key 2", "key 3", "localhost"]
    assert not re.search(r"live|user|password|pw", shown)


@virtual
async def test_custom_label_names_the_keys() -> None:
    keyed = KeyedRateLimiter(100)
    feed = Feed("accounts", keyed, lambda key: f"account {key}", now)
    await keyed.acquire(7)
    assert [key["name"] for key in feed.snapshot()["keys"] or ()] == ["account 7"]


@virtual
async def test_label_that_fails_costs_only_its_row() -> None:
    keyed = KeyedRateLimiter(100)

    def label(key: Hashable) -> str:
        raise KeyError(key)

    feed = Feed("accounts", keyed, label, now)
    await keyed.acquire(7)
    shown = feed.snapshot()
    assert (shown["granted"], shown["keys"]) == (1, [])


@virtual
async def test_latest_keys_are_shown_and_none_is_made() -> None:
    keyed = KeyedRateLimiter(100)
    feed = Feed("hosts", keyed, None, now)
    for number in range(1000):
        async with keyed.throttle(f"{number:04}.example.org"):
            pass
    async with keyed.throttle("0600.example.org"):
        pass
    names = [key["name"] for key in feed.snapshot()["keys"] or ()]
    assert len(names) == 50
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("0600.example.org", "0999.example.org")
    assert len(feed._keys) == 500
    await asyncio.sleep(1000.0)
    assert len(keyed) == 0
    feed.snapshot()
    assert len(keyed) == 0, "a snapshot makes no forgotten key anew"


# ---- access ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("", {}, 200),
        ("", {"Host": "localhost:80"}, 200),
        ("", {"Host": "[::1]:80"}, 200),
        ("", {"Host": "evil.example"}, 403),
        ("", {"Host": "127.0.0.1.evil.example"}, 403),
        ("", {"Host": "localhost.evil.example:80"}, 403),
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
    ],
)
async def test_only_this_machine_and_origin_are_answered(
    path: str, headers: dict[str, str], expected: int
) -> None:
    async with serve(RateLimiter(10)) as url:
        assert await status(url + path, **headers) == expected


async def test_public_address_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(RateLimiter(10)):
        assert caplog.messages == []
    async with serve(RateLimiter(10), host="0.0.0.0") as url:
        assert await status(url) == 200
    assert caplog.messages == ["the live page is open to others, on 0.0.0.0"]


async def test_wrong_arguments_are_named_and_leave_nothing() -> None:
    limiter = RateLimiter(10)
    with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
        async with serve({"good": limiter, "bad": "10/s"}):  # type: ignore[dict-item]
            pass
    for name, value, message in (
        ("host", None, "such as '127.0.0.1', got None"),
        ("port", "8321", "such as 8321, got '8321'"),
        ("port", True, "such as 8321, got True"),
        ("port", 65536, "to 65535, got 65536"),
        ("facts", "7", "facts must be a function or None"),
        ("label", "host", "label must be a function or None"),
    ):
        arguments: dict[str, Any] = {name: value}
        with pytest.raises((TypeError, ValueError), match=message):
            async with serve(limiter, **arguments):
                pass
    async with serve(RateLimiter(1)) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            async with serve(limiter, port=port):
                pass
    assert not limiter._engine.observers.listeners


# ---- the end -----------------------------------------------------------------------------------


async def test_server_ends_and_notifies_open_pages() -> None:
    limiter = RateLimiter(10)
    async with aiohttp.ClientSession() as session:
        async with serve(limiter) as url:
            response = await session.get(url + "events")
            await response.content.readuntil(b"\n\n")
        rest = await response.content.read()
    assert rest.endswith(b"event: end\ndata:\n\n")
    assert not limiter._engine.observers.listeners
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(url)


async def test_server_ends_though_a_page_reads_nothing() -> None:
    limiter = RateLimiter(10)
    long = {"fact": "x" * 10_000_000}  # more than the sockets take
    async with serve(limiter, facts=lambda: long) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
    writer.close()
    assert not limiter._engine.observers.listeners


async def test_server_ends_when_its_owner_is_cancelled() -> None:
    limiter = RateLimiter(10)
    opened = asyncio.get_running_loop().create_future()

    async def own() -> None:
        async with serve(limiter) as url:
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
    assert not limiter._engine.observers.listeners


# ---- idle connections and unread streams -------------------------------------------------------

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
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
    try:
        while opened.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


@pytest.mark.parametrize("sent", [b"", HALF, WHOLE, WHOLE + HALF])
async def test_connection_without_a_request_in_time_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        came = await until_closed(await connect(sent))
    assert (came > 0) is sent.startswith(WHOLE)
    assert caplog.messages == []


async def test_dripping_head_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    loop = asyncio.get_running_loop()
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        opened = await connect(HALF)

        async def drip() -> None:
            for _ in range(200):
                await loop.sock_sendall(opened, b"x")
                await asyncio.sleep(0.05)

        with pytest.raises(ConnectionError):
            await drip()


async def test_stream_is_no_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    async with serve(RateLimiter(10)) as url, streaming(url) as received:
        for _ in range(3):
            assert (await received())["limiters"]


async def test_many_half_open_requests_leave_room() -> None:
    async with (
        serve(RateLimiter(10)) as url,
        connecting(url) as connect,
        streaming(url) as received,
    ):
        await received()
        half = [await connect(HALF) for _ in range(300)]
        assert await status(url) == 200
        assert await status(url + "events") == 200
        await received()
        await received()
        still = [is_open(each) for each in half]
    assert 80 <= sum(still) <= 100
    assert not any(still[:200]), "the longest idle are closed first"


async def test_longest_idle_connection_is_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MOST", 3)
    loop = asyncio.get_running_loop()
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        first, second = await connect(WHOLE), await connect(HALF)
        await loop.sock_recv(first, 1 << 16)
        third = await connect(HALF)
        await loop.sock_sendall(first, WHOLE)
        await asyncio.sleep(0.05)
        await connect(HALF)
        assert await until_closed(second) == 0
        assert is_open(third)
        assert is_open(first)


async def test_unread_streams_leave_room() -> None:
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        unread = [await connect(STREAM) for _ in range(20)]
        async with streaming(url) as received:
            assert (await received())["limiters"]
            await until_closed(unread[0])
            await received()
            assert [is_open(each) for each in unread] == [False] + [True] * 19


async def test_unread_stream_is_closed_before_the_oldest() -> None:
    long = {"fact": "x" * 10_000_000}  # more than the sockets take
    facts: dict[str, str] = {}
    async with serve(RateLimiter(10), facts=lambda: facts) as url, connecting(url) as connect:
        read = [await connect(STREAM) for _ in range(10)]
        await asyncio.sleep(0.1)
        facts.update(long)
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
            await asyncio.sleep(0.5)
        assert 0 < events < 500, "2.5 MB"
        assert await until_closed(unread) <= events * 6000
    assert caplog.messages == []


async def test_closed_page_leaves_room_at_once() -> None:
    async with serve(RateLimiter(10)) as url, connecting(url) as connect:
        first = await connect(STREAM)
        for _ in range(40):
            (await connect(STREAM)).close()
            await asyncio.sleep(0.01)
        assert is_open(first)


async def test_connecting_and_closing_pages_log_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serve(RateLimiter(10)) as url:
        async with streaming(url) as received:
            await received()
        await asyncio.sleep(0.6)  # it writes once more
    assert caplog.messages == []


# ---- appearance --------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_pair_of_colours_has_enough_contrast() -> None:
    css = (FOLDER / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{([^}]*)\}", css)
    )
    assert light.keys() == dark.keys()
    for scheme in (light, dark):
        for behind in ("paper", "card"):
            for name in ("ink", "soft", "line", "limit"):
                low, high = sorted((luminance(scheme[behind]), luminance(scheme[name])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, behind)


# Each element with clipped text, or that overlaps one that it does not contain.
MISPLACED = """
(() => {
  const wrong = [];
  const texts = "h1, h2, h3, p, dt, dd, td, th, li, span, figcaption";
  const shown = [...document.querySelectorAll(texts)].filter(
    (each) => each.checkVisibility() && !each.closest(".unseen, thead") && each.textContent
  );
  const place = (each) => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return range.getBoundingClientRect();
  };
  for (const each of shown) {
    const box = place(each);
    const width = each.clientWidth;
    if (width && each.scrollWidth > width + 1) wrong.push(["cut", each.outerHTML]);
    if (box.left < 0 || box.right > innerWidth) wrong.push(["outside", each.outerHTML]);
    for (const other of shown) {
      if (each === other || each.contains(other) || other.contains(each)) continue;
      const there = place(other);
      const wide = Math.min(box.right, there.right) - Math.max(box.left, there.left);
      const high = Math.min(box.bottom, there.bottom) - Math.max(box.top, there.top);
      if (wide > 1 && high > 1) wrong.push(["over", each.outerHTML, other.outerHTML]);
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(["wide"]);
  return wrong;
})()
"""


@asynccontextmanager
async def shown_page() -> AsyncGenerator[tuple[Tab, KeyedRateLimiter]]:
    parent = RateLimiter(["40/s", "1500/min"], concurrency_limit=20)
    keyed = KeyedRateLimiter("200/s", concurrency_limit=30, parent=parent)
    shown: Shown = {"all hosts": parent, "each host": keyed}
    facts = {"URLs done": "1,234,567", "failed": "3", "of the list": "41 %"}
    async with open_tab() as tab, serve(shown, facts=lambda: facts) as url:
        for host in ("api.example.org", "a-long-name.of-a-host.in-a-department.example.com:8443"):
            await keyed.acquire(host)
        keyed.pause("api.example.org", 3000)
        await tab.open(url)
        await tab.until("document.querySelectorAll('tbody tr').length === 2")
        yield tab, keyed


needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no server: a headless Chromium: there is none on the PATH"
)


@needs_browser
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_browser_shows_nothing_clipped_or_overlapping(width: int, scheme: str) -> None:
    async with shown_page() as (tab, _):
        await tab.show(width=width, scheme=scheme)
        assert await tab.evaluate(MISPLACED) == []
        paper = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(16, 20, 24)"}[scheme]
        assert (await tab.picture()).startswith(b"\x89PNG")
        assert tab.errors == []


@needs_browser
async def test_browser_page_updates_and_shows_the_end() -> None:
    async with shown_page() as (tab, keyed):
        assert await tab.evaluate("document.getElementById('state').textContent") == "live"
        for _ in range(40):
            async with keyed.throttle("new.example.org"):
                pass
        await tab.until("document.body.textContent.includes('new.example.org')")
        rows = "[...document.querySelectorAll('tbody tr')]"
        row = f"{rows}.find((row) => row.textContent.startsWith('new'))"
        await tab.until(f"{row}.children[4].textContent === '40'")
        keyed.pause("new.example.org", 600)
        await tab.until(f"{row}.children[7].textContent.startsWith('for 10 min')")
        # The only element that a screen reader reads out.
        news = "document.getElementById('news').textContent"
        await tab.until(f"{news} === 'new.example.org is paused for 10 min 0 s'")
        roles = await tab.evaluate(f"[...{row}.children].map((cell) => cell.getAttribute('role'))")
        assert roles == ["rowheader"] + ["cell"] * 7
        assert tab.errors == []


@needs_browser
async def test_browser_page_reports_an_outage() -> None:
    limiter = RateLimiter(10)
    async with open_tab() as tab, serve(limiter) as url:
        await tab.open(url)
        await tab.until("document.getElementById('state').textContent === 'live'")
        line = "document.querySelector('.store')"
        assert await tab.evaluate(f"{line}.hidden") is True
        limiter._engine.observers.emit(StoreDown(None, OSError()))
        await tab.until(f"/has not answered for [0-9]+ s/.test({line}.textContent)")
        assert await tab.evaluate(f"{line}.hidden") is False
        await tab.show(width=360, scheme="light")
        assert await tab.evaluate(MISPLACED) == []
        limiter._engine.observers.emit(StoreUp(None, 1.0))
        await tab.until(f"{line}.hidden")
        news = "document.getElementById('news').textContent"
        assert await tab.evaluate(news) == "limiter: the store answers again"
        assert tab.errors == []


@needs_browser
async def test_browser_page_reports_the_end() -> None:
    async with open_tab() as tab:
        async with serve(RateLimiter(10)) as url:
            await tab.open(url)
            await tab.until("document.getElementById('state').textContent === 'live'")
        await tab.until("document.getElementById('state').textContent.startsWith('ended')")
        assert tab.errors == []


@needs_browser
async def test_browser_shows_names_as_text_not_markup() -> None:
    limiter = RateLimiter(10)
    name = "<img src=x onerror=alert(1)>"
    async with open_tab() as tab, serve({name: limiter}, facts=lambda: {name: name}) as url:
        await tab.open(url)
        await tab.until("document.querySelector('h2') !== null")
        assert await tab.evaluate("document.querySelector('h2').textContent") == name
        assert await tab.evaluate("document.querySelectorAll('img').length") == 0
        assert tab.errors == []
