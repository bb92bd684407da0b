"""What the live page shows of keys, of the past, and of other processes, in virtual time."""

import asyncio
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiothrottle import AdaptiveRate, Cooldown, KeyedRateLimiter, RateLimiter
from aiothrottle.dashboard.feed import Feed, shared_use
from tests.metrics.causing import retries
from tests.support.failing import Client, Server
from tests.support.virtually import now

COUNTS = "granted inFlight waiting rejected throttled retried pausedFor paused keyCount"


async def test_snapshot_shows_the_current_state() -> None:
    limiter = RateLimiter(["10/s", "300/min"], concurrency_limit=4)
    feed = Feed("api", limiter, None, now)
    before = feed.snapshot()
    unknown = dict.fromkeys(("rate", "inUse", "storeDownFor", "keys")) | {"at": now()}
    zeros = dict.fromkeys(COUNTS.split(), 0)
    limits = {"limits": ["10 per 1 s", "300 per 60 s"], "perSecond": 5.0}
    assert before == {"name": "api", "slots": 4, **limits, "pauses": [], **unknown, **zeros}
    await retries(limiter, 500)
    permit = await limiter.acquire(2)
    permit.report_throttled(retry_after=60)
    await limiter.try_acquire()
    after = feed.snapshot()
    expected = {"granted": 3, "inFlight": 1, "rejected": 1, "throttled": 1, "retried": 1}
    assert {name: after[name] for name in expected} == expected
    assert 60 <= after["pausedFor"] <= 66
    (pause,) = after["pauses"]
    assert pause["key"] == "api"
    assert pause["reason"] == "the server throttled a request and asked for a pause"


async def test_keys_are_shown_by_name_with_their_parent_apart() -> None:
    parent = RateLimiter(1000)
    keyed = KeyedRateLimiter(100, parent=parent)
    above, hosts = (Feed("name", each, None, now) for each in (parent, keyed))
    for key in ("b.example.org", "a.example.org", "a.example.org"):
        await keyed.acquire(key)
    keyed.pause("b.example.org", 60)
    shown = hosts.snapshot()
    assert above.snapshot()["granted"] == shown["granted"] == 3
    keys = [(key["name"], key["granted"], key["pausedFor"]) for key in shown["keys"]]
    assert keys == [("a.example.org", 2, 0), ("b.example.org", 1, 60)]
    assert shown["pauses"][0]["key"] == "b.example.org"


@pytest.mark.parametrize(
    ("limiter", "limits"),
    [
        (RateLimiter(AdaptiveRate(7, 1, 100)), ["7 per 1 s"]),
        (RateLimiter({"tokens": "9/min"}), ["tokens 9/min"]),
        (RateLimiter({"requests": 2, "tokens": 9}), ["requests 2/s, tokens 9/s"]),
        (RateLimiter(algorithm=Cooldown(3, 60)), ["Cooldown(n=3, period=60)"]),
        (RateLimiter(concurrency_limit=3), []),
        (RateLimiter("server"), []),
    ],
)
async def test_limits_of_all_kinds_are_shown(limiter: RateLimiter, limits: list[str]) -> None:
    assert Feed("api", limiter, None, now).snapshot()["limits"] == limits


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


async def test_custom_label_names_keys_or_fails_for_one() -> None:
    keyed = KeyedRateLimiter(100)
    labels: dict[object, str] = {7: "account 7", None: "anonymous"}
    feed = Feed("accounts", keyed, labels.__getitem__, now)
    for key in (7, 8, None):
        await keyed.acquire(key)
    shown = feed.snapshot()
    assert shown["granted"] == 3
    assert [key["name"] for key in shown["keys"] or ()] == ["account 7", "anonymous"]


async def test_latest_keys_are_shown_and_none_is_made() -> None:
    keyed = KeyedRateLimiter(100)
    feed = Feed("hosts", keyed, None, now)
    keyed.pause("api.example.org", 50)
    for number in range(1000):
        async with keyed.throttle(f"{number:04}.example.org"):
            pass
    async with keyed.throttle("0600.example.org"):
        pass
    shown = feed.snapshot()
    assert shown["paused"] == 1, "also of keys that are not shown"
    names = [key["name"] for key in shown["keys"]]
    assert len(names) == 50
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("0600.example.org", "0999.example.org")
    await asyncio.sleep(1000.0)
    assert len(keyed) == 0
    feed.snapshot()
    assert len(keyed) == 0, "a snapshot makes no forgotten key anew"


async def test_history_keeps_rates_and_the_limits_of_their_time() -> None:
    limiter = RateLimiter("10/s")
    feed = Feed("limiter", limiter, None, now)
    for step in range(480):  # four minutes, of which the first has no requests
        feed.sample()
        if step >= 120:
            await limiter.acquire(5)
        if step == 450:
            limiter.update(rate_limit="20/s")
        await asyncio.sleep(0.5)
    feed.sample()
    points = list(feed.history)
    assert points[0][0] == now() - 120, "the last two minutes are kept"
    assert [limit for _, _, limit in points] == [10.0] * 211 + [20.0] * 30
    assert all(rate == pytest.approx(10, rel=0.02) for _, rate, _ in points)
    assert feed.snapshot()["rate"] == pytest.approx(10, rel=0.02)
    young = Feed("limiter", limiter, None, now)
    for _ in range(10):
        young.sample()
        await asyncio.sleep(0.5)
    assert len(young.history) == 5, "none in the first 2.5 s, which are no average"


async def test_each_key_has_its_rate_and_its_limit() -> None:
    keyed = KeyedRateLimiter("100/s", overrides={"slow": {"rate_limit": "10/min"}})
    feed = Feed("keys", keyed, str, now)
    for _ in range(20):
        feed.sample()
        await keyed.acquire("fast", 4)
        await asyncio.sleep(0.5)
    await keyed.acquire("slow")
    feed.sample()
    fast, slow = feed.snapshot()["keys"]
    assert fast["rate"] == pytest.approx(8)
    assert fast["perSecond"] == 100.0
    assert slow["rate"] is None
    assert slow["perSecond"] == pytest.approx(1 / 6)


async def test_pauses_of_a_key_are_one_line() -> None:
    keyed = KeyedRateLimiter("10/s")
    late = itertools.accumulate(itertools.count())
    feed = Feed("keys", keyed, str, lambda: now() + next(late))  # slower and slower
    for seconds in (5, 9, 20):
        await asyncio.sleep(100.0)
        keyed.pause("a", seconds)
        keyed.pause("b", 7)
    keyed.pause("a", 30)
    shown, again = feed.snapshot(), feed.snapshot()
    began = [each["at"] - each["pauses"][0]["ago"] for each in (shown, again)]
    assert began[0] == began[1], "the page announces each pause once"
    last, other = shown["pauses"]
    assert (last["key"], last["count"], last["seconds"]) == ("a", 4, 30)
    assert (other["key"], other["count"], other["seconds"]) == ("b", 3, 7)
    for number in range(20):
        keyed.pause(f"key {number:02}", 5)
    assert [each["key"] for each in feed.snapshot()["pauses"]][::9] == ["key 19", "key 10"]


async def test_outage_is_shown_and_leaves_the_use_unknown() -> None:
    server = Server()
    limiter = RateLimiter("20/s", store=Client(server), key="k", on_store_error="open")
    feed = Feed("api", limiter, None, now)
    await limiter.try_acquire()
    assert feed.snapshot()["storeDownFor"] is None
    server.mode = "refuses"
    await limiter.try_acquire()
    await asyncio.sleep(3.0)
    await limiter.try_acquire()
    assert feed.snapshot()["storeDownFor"] == 3.0
    server.mode = "up"
    await asyncio.sleep(3.0)
    assert feed.snapshot()["storeDownFor"] is None
    await limiter.aclose()
    server = Server()
    async with RateLimiter("100/min", store=Client(server), key="x") as limiter:
        assert await shared_use(limiter) is None, "no store was asked yet"
        await limiter.acquire(50)
        assert await shared_use(limiter) == pytest.approx(0.5)
        server.mode = "refuses"
        assert await shared_use(limiter) is None
        with ThreadPoolExecutor() as threads:
            used = threads.submit(asyncio.run, shared_use(limiter)).result()
        assert used is None, "the limiter is not used on that loop"
    assert await shared_use(RateLimiter(10)) is None
