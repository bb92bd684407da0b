"""A headless Chromium, if this machine has one, driven through its debugging protocol."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no server: a headless Chromium: there is none on the PATH"
)

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # root may not use it, and the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Tab:
    def __init__(self, socket: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._socket = socket
        self._number = 0
        self.errors: list[str] = []

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call the browser, and note the errors that it reports meanwhile."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while (reply := await self._socket.receive_json()).get("id") != self._number:
            if reply["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(reply["params"]["exceptionDetails"]))
            elif reply["method"] == "Log.entryAdded":
                entry = reply["params"]["entry"]
                self.errors += [entry["text"]] if entry["level"] == "error" else []
        assert "error" not in reply, reply["error"]
        return dict(reply["result"])

    async def evaluate(self, script: str) -> Any:
        reply = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def until(self, condition: str) -> None:
        """Wait until the condition holds, at most half a minute."""
        for _ in range(600):
            if await self.evaluate(condition):
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"the page never came to: {condition}")


@asynccontextmanager
async def open_tab() -> AsyncGenerator[Tab]:
    assert BROWSER is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            BROWSER,
            *_SWITCHES,
            f"--user-data-dir={folder}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort")
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                async with session.put("/json/new?about:blank") as response:
                    address = (await response.json())["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    yield tab
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path) -> int:
    while True:
        with suppress(FileNotFoundError, IndexError):
            return int(file.read_text(encoding="utf-8").splitlines()[0])  # noqa: ASYNC240 - short
        await asyncio.sleep(0.05)
