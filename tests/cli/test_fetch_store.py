"""`aiothrottle fetch --store`: rates that several runs share."""

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from aiothrottle.cli.fetch import limits
from tests.cli.conftest import Command, Serve
from tests.cli.handlers import always, urls_of

if TYPE_CHECKING:
    from tests.support.servers import Valkey


def address(valkey: "Valkey") -> str:
    return f"redis://127.0.0.1:{valkey.port}"


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return address(request.getfixturevalue("valkey"))
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/limits.db"
    return f"memcached://127.0.0.1:{request.getfixturevalue('memcached_server').port}"


@pytest.mark.parametrize(
    ("store", "limit"),
    [("redis", "--rate"), ("memcached", "--per-host"), ("sqlite", "--rate")],
    indirect=["store"],
)
def test_runs_of_one_key_share_a_rate(store: str, fetch: Command, serve: Serve, limit: str) -> None:
    options = [limit, "3/250ms", "--store", store, "--store-key"]
    server = serve()
    first, same, other = (
        fetch(*urls_of(server, 3), *options, key) for key in ("ours", "ours", "other")
    )
    assert server.audit.sent == 9
    # The second run has to wait for the requests of the first.
    assert first.seconds + same.seconds >= 0.25
    waits = [max(record["waited"] for record in run.records) for run in (first, same, other)]
    assert waits[1] > max(waits[0], waits[2])


def test_run_without_its_store_resumes(fetch: Command, serve: Serve, own_valkey: "Valkey") -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        if server.audit.sent == 2:
            own_valkey.kill()
        return await answer(request)

    server, answer = serve(respond), always()
    urls = urls_of(server, 50)  # more than are reserved at a time, if the store seems to be far
    run = [*urls, "--rate", "1/25ms", "--resume"]
    broken = fetch(*run, "--store", address(own_valkey))
    assert broken.status == 3
    assert " fetched, 0 failed" in broken.messages
    assert "the store of the limits fails: " in broken.messages
    assert broken.messages.endswith("Broken off: the same with --resume fetches the rest.\n")
    assert 2 <= len(broken.records) < 50
    rest = fetch(*run)
    assert (rest.status, server.audit.sent) == (0, 50)
    assert sorted(rest.by("url")) == sorted(urls)


def test_missing_store_is_an_error_without_its_password(
    fetch: Command, serve: Serve, command: Command, tmp_path: Path
) -> None:
    server = serve()
    ended = fetch(server.url, "--rate", "1", "--store", "redis://:secret@127.0.0.1:1")
    assert (ended.status, server.audit.sent) == (2, 0)
    assert "argument --store: redis://127.0.0.1:1: Redis: Error 111" in ended.messages
    assert "secret" not in ended.messages
    ended = fetch(server.url, "--rate", "1", "--store", f"sqlite:{tmp_path}")
    assert (ended.status, server.audit.sent) == (2, 0)
    assert f"argument --store: sqlite:{tmp_path}: SQLite {tmp_path}: it is a f" in ended.messages
    for store in UNCLEAR:
        ended = command("fetch", "http://127.0.0.1:1/", "--rate", "1", "--store", store)
        assert (ended.status, ended.printed) == (2, "")
        (error,) = ended.messages.splitlines()
        scheme = store.partition("://")[0]
        assert f"argument --store: {scheme}://*** cannot be read: write {scheme}://USER:" in error
        assert "sec" not in error
        assert "ret" not in error


def test_driver_that_does_not_close_ends_the_run_all_the_same(
    fetch: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """emcache waits for its task that connects, which may lose its cancellation."""
    emcache = pytest.importorskip("emcache.client")
    close = emcache._Client.close

    async def close_and_wait(client: object) -> None:
        await close(client)
        await asyncio.Event().wait()

    monkeypatch.setattr(emcache._Client, "close", close_and_wait)
    create = functools.partial(emcache.create_client, timeout=0.1)
    monkeypatch.setattr("emcache.create_client", create)
    monkeypatch.setattr(limits, "_CLOSING", 0.1)
    ended = fetch("http://127.0.0.1:1/", "--rate", "1", "--store", "memcached://127.0.0.1:1")
    assert ended.status == 2
    assert "argument --store: memcached://127.0.0.1:1: memcached: no connection" in ended.messages


# Of each store, and of each sign that should have been escaped in a password.
UNCLEAR = [
    "redis://me:sec/ret@127.0.0.1:1",
    "rediss://:sec/ret@127.0.0.1:1",
    "mongodb://me:sec/ret@127.0.0.1:1",
    "mongodb+srv://me:sec/ret@a.example.org",
    "memcached://:sec/ret@127.0.0.1:1",
    *(f"redis://me:{it}" for it in ("sec?ret@h:1", "sec#ret@h:1", "1/ret@h:1", "[sec/ret@h:1")),
    *(f"redis://me:{it}" for it in ("sec", "ret@127.0.0.1:sec")),
]
