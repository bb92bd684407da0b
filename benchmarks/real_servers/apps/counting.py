"""Serves an application, and prints one line per response: "seconds status"."""

import sys
import time
from typing import Any

PORT = int(sys.argv[1])


def serve_asgi(app: Any) -> None:
    """Serve an ASGI application until the process ends."""
    import uvicorn

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def count(message: Any) -> None:
            if message["type"] == "http.response.start":
                _count(message["status"])
            await send(message)

        await app(scope, receive, count)

    uvicorn.run(counted, host="127.0.0.1", port=PORT, log_level="error", access_log=False)


def serve_wsgi(app: Any) -> None:
    """Serve a WSGI application until the process ends."""
    import waitress

    def counted(environ: Any, start_response: Any) -> Any:
        def count(status: str, *rest: Any) -> Any:
            _count(int(status[:3]))
            return start_response(status, *rest)

        return app(environ, count)

    waitress.serve(counted, host="127.0.0.1", port=PORT, threads=16)


def _count(status: int) -> None:
    sys.stdout.write(f"{time.time():.3f} {status}\n")
    sys.stdout.flush()
