"""`aiothrottle fetch --store`: rates that several runs share."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from aiothrottle.cli import main
from tests.background import background, start
from tests.servers import Valkey, need_emcache

pytestmark = pytest.mark.slow

# The modules that import a driver.
STORES = ("aiothrottle.stores.redis", "aiothrottle.stores.mongo", "aiothrottle.stores.memcached")


def address(valkey: Valkey) -> str:
    return f"redis://127.0.0.1:{valkey.port}"


@pytest.mark.parametrize("limit", ["--rate", "--per-host"])
def test_two_runs_share_a_rate(valkey: Valkey, tmp_path: Path, limit: str) -> None:
    began = time.monotonic()
    with background() as server:
        for name in ("one", "other"):
            urls = [f"{server.url}{name}{number}" for number in range(3)]
            limits = [limit, "3/s", "--store", address(valkey), "--store-key", "ours"]
            assert main(["fetch", *urls, "-o", str(tmp_path / name), "-s", *limits]) == 0
    assert time.monotonic() - began >= 1.0  # and next to nothing without the store


def test_other_key_is_another_rate(valkey: Valkey, tmp_path: Path) -> None:
    with background() as server:
        for name in ("one", "other"):
            limits = ["--rate", "1/h", "--store", address(valkey), "--store-key", name]
            arguments = [str(server.url), "-o", str(tmp_path / name), "-s", *limits]
            assert main(["fetch", *arguments]) == 0
        assert server.audit.sent == 2


def test_run_ends_without_its_store_and_resumes(
    valkey: Valkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with background() as server:

        def kill_in_the_midst() -> None:
            while server.audit.sent < 2:
                time.sleep(0.01)
            valkey.kill()

        urls = [f"{server.url}{number}" for number in range(4)]
        arguments = ["fetch", *urls, "-o", str(out), "--rate", "1/500ms", "--resume"]
        killer = threading.Thread(target=kill_in_the_midst)
        killer.start()
        assert main([*arguments, "--store", address(valkey)]) == 3
        killer.join()
        messages = capsys.readouterr().err
        assert " fetched, 0 failed" in messages
        assert "the store of the limits fails: " in messages
        assert messages.endswith("Broken off: the same with --resume fetches the rest.\n")
        assert 2 <= len(out.read_bytes().splitlines()) < 4
        assert main(arguments) == 0
        assert server.audit.sent == 4
    assert sorted(json.loads(line)["url"] for line in out.read_bytes().splitlines()) == urls


@pytest.mark.parametrize(
    ("store", "error"),
    [
        ("redis://127.0.0.1:1", "redis://127.0.0.1:1: Redis: Error 111"),
        ("redis://:secret@127.0.0.1:1", "redis://127.0.0.1:1: Redis: Error 111"),
        ("mongodb://me:secret@127.0.0.1:1", "mongodb://127.0.0.1:1: MongoDB: "),
        ("memcached://127.0.0.1:1", "memcached://127.0.0.1:1: memcached: no answer in time"),
    ],
)
def test_missing_store_is_an_error_before_any_request(
    store: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if store.startswith("memcached"):
        need_emcache()
    out = tmp_path / "out"
    with background() as server:
        assert (
            main(["fetch", str(server.url), "-o", str(out), "--rate", "1", "--store", store]) == 2
        )
        assert server.audit.sent == 0
    messages = capsys.readouterr().err
    assert f"argument --store: {error}" in messages
    assert "secret" not in messages


@pytest.mark.parametrize(
    ("scheme", "rest"),
    [
        ("redis", "me:sec/ret@127.0.0.1:1"),
        ("rediss", ":sec/ret@127.0.0.1:1"),
        ("mongodb", "me:sec/ret@127.0.0.1:1"),
        ("mongodb+srv", "me:sec/ret@a.example.org"),
        ("memcached", ":sec/ret@127.0.0.1:1"),
        ("redis", "me:sec?ret@127.0.0.1:1"),
        ("redis", "me:sec#ret@127.0.0.1:1"),
        ("redis", "me:1/ret@127.0.0.1:1"),
        ("redis", "me:[sec/ret@127.0.0.1:1"),
        ("redis", "me:sec"),
        ("redis", "me:ret@127.0.0.1:sec"),
    ],
)
def test_password_of_a_store_is_never_printed(scheme: str, rest: str) -> None:
    """By the whole command, with the error of a driver for such an address."""
    store = f"{scheme}://{rest}"
    with start("fetch", "http://127.0.0.1:1/", "--rate", "1", "--store", store) as fetch:
        printed, messages = fetch.communicate(timeout=60)
    assert fetch.returncode == 2
    assert printed == ""
    *_, error = messages.splitlines()
    assert f"argument --store: {scheme}://*** cannot be read: write {scheme}://USER:" in error
    assert "sec" not in error
    assert "ret" not in error


@pytest.mark.parametrize(
    ("scheme", "driver", "extra"),
    [
        ("redis", "redis", "redis"),
        ("mongodb", "pymongo", "mongodb"),
        ("memcached", "emcache", "memcached"),
    ],
)
def test_missing_driver_error_names_the_package(
    scheme: str,
    driver: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.startswith((f"{driver}.", *STORES))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    limits = ["--rate", "1", "--store", f"{scheme}://h"]
    assert main(["fetch", "http://127.0.0.1:1/", *limits]) == 2
    assert f"pip install 'aiothrottle-client[{extra}]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["--store", "nonsense://x", "--rate", "1"],
            "redis://, rediss://, mongodb://, mongodb+srv://, memcached://, got 'nonsense://x'",
        ),
        (["--store", "nowhere", "--rate", "1"], "memcached://, got 'nowhere'"),
        (["--store", "nonsense://:secret@x", "--rate", "1"], "got 'nonsense://x'"),
        (["--store", "redis://[::1", "--rate", "1"], "redis://*** cannot be read: write redis://"),
        (["--store", "redis://h:port", "--rate", "1"], "redis://*** cannot be read"),
        (["--store", "redis:/h", "--rate", "1"], "got '***'"),
        (["--store", "redis://h"], "--store counts a rate: give --rate or --per-host"),
        (
            ["--store", "redis://h", "--rate", "1", "--per-host", "1"],
            "a store counts either all requests or those of each host: ",
        ),
        (["--store-key", "k", "--rate", "1"], "--store-key names the limits in a store"),
        (["--guard", "1"], "--guard stretches the period of a rate"),
    ],
)
def test_conflicting_options_are_rejected(
    options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "http://127.0.0.1:1/", *options])
    assert ended.value.code == 2
    assert error in capsys.readouterr().err
