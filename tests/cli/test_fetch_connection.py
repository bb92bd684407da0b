"""How `aiothrottle fetch` connects: proxies, certificates, credentials."""

import base64
import os
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import trustme
from aiohttp import web
from yarl import URL

from aiothrottle.cli.proxies import Proxies, proxies_of_environment
from tests.cli.conftest import Command, Jobs, Serve
from tests.cli.handlers import Seen, always, by_path, noting, to, urls_of
from tests.support.background import ENVIRONMENT, in_thread, start


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


AUTHORITY = trustme.CA()


def listening(handler: Callable[[Any], Any], *, tls: bool = False) -> AbstractContextManager[str]:
    """Handle all requests, those to a proxy too; yield the host and port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cast("Any", AUTHORITY.issue_cert("127.0.0.1")).configure_cert(context)

    @asynccontextmanager
    async def serve() -> AsyncGenerator[str]:
        runner = web.ServerRunner(web.Server(handler))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context if tls else None).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()

    return in_thread(serve)


class Asked(NamedTuple):
    method: str
    target: str
    credentials: str | None
    connection: object = None


def proxy(asked: list[Asked], *, tls: bool = False) -> AbstractContextManager[str]:
    """Return a proxy on loopback that answers requests for http itself, and opens no tunnel."""

    async def handle(request: web.BaseRequest) -> web.Response:
        credentials = request.headers.get("Proxy-Authorization")
        assert request.method != "CONNECT" or "Authorization" not in request.headers
        asked.append(Asked(request.method, request.raw_path, credentials, request.transport))
        status = 403 if request.method == "CONNECT" else 200
        return web.Response(status=status, text=f"proxied {request.raw_path}")

    return listening(handle, tls=tls)


def basic(pair: str) -> str:
    return f"Basic {base64.b64encode(os.fsencode(pair)).decode()}"


# ---- proxies ---------------------------------------------------------------------------------

URLS = ["http://one.test/a?b", "http://two.test:81/"]


@pytest.mark.parametrize("scheme", ["http://", "", "https://"])
def test_requests_go_through_the_proxy(
    scheme: str, fetch: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Asked]()
    with proxy(asked, tls=scheme == "https://") as address:
        monkeypatch.setenv("all_proxy", f"{scheme}{address}")
        ended = fetch(*URLS, "--insecure")
    assert sorted(it[:3] for it in asked) == [("GET", url, None) for url in URLS]
    assert {it["url"]: it["body"] for it in ended.records} == {it: f"proxied {it}" for it in URLS}


def test_proxy_gets_its_credentials_on_each_request(
    fetch: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, urls = list[Asked](), ["http://one.test/a", "http://one.test/b", "https://two.test/"]
    run = [*urls, "--concurrency", "1", "-v", "--retry", "0", "-H", "Authorization: Basic word"]
    with proxy(asked) as address:
        monkeypatch.setenv("all_proxy", f"me:s%40cret@{address}")
        ended = fetch(*run)
    targets = [("GET", urls[0]), ("GET", urls[1]), ("CONNECT", "two.test:443")]
    assert [it[:3] for it in asked] == [(*it, basic("me:s@cret")) for it in targets]
    assert asked[0].connection is asked[1].connection, "it has them on one that is reused, too"
    assert "cret" not in f"{ended.records} {ended.messages}"
    ended = fetch(*run)  # it is gone
    assert all("Cannot connect" in record["error"] for record in ended.records)
    assert "cret" not in f"{ended.records} {ended.messages}"


def test_probe_goes_through_the_proxy(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, run = list[Asked](), ["probe", "http://one.test/a", "--yes"]
    with proxy(asked) as address:
        monkeypatch.setenv("http_proxy", f"me:secret@{address}")
        ended = command(*run)
    assert (ended.status, *asked[0][:3]) == (0, "GET", "http://one.test/a", basic("me:secret"))
    monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:1")
    wrong = command(*run)
    assert (wrong.status, wrong.printed) == (2, ""), "nothing is sent directly"
    assert "secret" not in f"{ended} {wrong}"


def test_no_proxy_is_direct(fetch: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server, asked = serve(), list[Asked]()
    with proxy(asked) as address:
        monkeypatch.setenv("HTTP_PROXY", f"http://{address}")
        monkeypatch.setenv("NO_PROXY", "other.test, 127.0.0.1")
        assert fetch(server.url).status == 0
        assert (len(asked), server.audit.sent) == (0, 1)
        monkeypatch.setenv("NO_PROXY", "")
        assert fetch(server.url).status == 0
        assert (len(asked), server.audit.sent) == (1, 1)


def test_variables_choose_the_proxy_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def proxies_of(**environment: str) -> Proxies:
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            return proxies_of_environment()

    proxies = proxies_of(
        http_proxy="one:1",
        HTTP_PROXY="http://ignored:9",
        HTTPS_PROXY="http://two:2",
        no_proxy=".a.local, PORT.org:8080,10.0.0.0/8 ,::1,*.star.org,",
    )
    through = ["example.org", "nota.local", "port.org", "11.1.2.3"]
    directly = ["a.local", "b.a.local", "port.org:8080", "10.1.2.3", "[::1]:99", "x.star.org"]
    assert {proxies.of(URL(f"http://{host}/")) for host in through} == {URL("http://one:1")}
    assert {proxies.of(URL(f"http://{host}/")) for host in [*directly, "star.org"]} == {None}
    assert proxies.of(URL("https://example.org/")) == URL("http://two:2")
    for url in ("http://a.org/", "http://127.0.0.1/"):
        proxies = proxies_of(all_proxy="p:1", no_proxy="*")
        assert proxies.of(URL(url)) is None
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        assert proxies_of(**{name: "p:1"}).of(URL("http://a/")) == URL("http://p:1")
    assert proxies_of(http_proxy="", HTTP_PROXY="http://p").by_scheme == {}
    # In a CGI program a client chooses it.
    assert proxies_of(HTTP_PROXY="http://p", REQUEST_METHOD="GET").by_scheme == {}


def test_invalid_proxy_of_the_environment_is_named(
    fetch: Command, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ignore it would send directly what its user wants to go through it."""
    for wrong in ("socks5://me:secret@127.0.0.1:1", "http://", "http://h:port"):
        monkeypatch.setenv("ALL_PROXY", wrong)
        ended = fetch("http://127.0.0.1:1/")
        assert (ended.status, out.exists()) == (2, False)
        assert "the environment variable all_proxy must be a proxy such as" in ended.messages
        assert f"got {wrong.replace('me:secret', '***')!r}" in ended.messages


# ---- certificates ----------------------------------------------------------------------------


def test_certificate_has_to_be_valid(
    tmp_path: Path, fetch: Command, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours"
    AUTHORITY.cert_pem.write_to_path(ours)
    with listening(always(body="in secret"), tls=True) as address:
        url = f"https://{address}/"
        record = fetch(url).record
        assert "CERTIFICATE_VERIFY_FAILED" in record["error"]
        assert record["attempts"] == 1, "another attempt would find the same certificate"
        for insecure in "-k", "--insecure":
            assert fetch(url, insecure).record["body"] == "in secret"
        # The authorities of OpenSSL's variable are trusted.
        monkeypatch.setitem(ENVIRONMENT, "SSL_CERT_FILE", str(ours))
        out.unlink()
        with start("fetch", url, "-o", str(out)) as process:
            assert process.wait(60) == 0


# ---- credentials -----------------------------------------------------------------------------


def sent(seen: list[Seen]) -> list[tuple[str, str | None, str | None]]:
    return [(it.path, it.headers.get("Authorization"), it.headers.get("Cookie")) for it in seen]


def test_secrets_are_sent_to_the_first_origin_only(
    fetch: Command, serve: Serve, jobs: Jobs
) -> None:
    """Origins that differ only in their port, like an API and another service on its host."""
    seen, seen_there = list[Seen](), list[Seen]()
    other = serve(noting(seen_there))
    server = serve(noting(seen, by_path({"a": to("/b"), "b": to(f"{other.url}there")})))
    credentials = basic("m\u00e9:p:ss")
    secrets = ["-H", f"Authorization: {credentials}", "-H", "Cookie: id=1", "-H", "X-Mine: secret"]
    harmless = ["-H", "Accept: a/b", "-H", "User-Agent: me"]
    listed = jobs({"url": f"{server.url}a", "data": "secret"})
    assert fetch("--requests", listed, "-L", *secrets, *harmless).status == 0
    assert sent(seen) == [("/a", credentials, "id=1"), ("/b", credentials, "id=1")]
    (there,) = seen_there
    assert (there.method, there.path, there.body) == ("GET", "/there", "")
    names = {name.lower() for name in there.headers}
    assert names == {"accept", "accept-encoding", "host", "user-agent"}
    assert (there.headers["accept"], there.headers["user-agent"]) == ("a/b", "me")


def test_header_that_is_repeated_is_sent_each_time(fetch: Command, serve: Serve) -> None:
    seen = list[Seen]()
    there = serve(noting(seen))
    server = serve(noting(seen, by_path({"a": to("/b"), "b": to(f"{there.url}c")})))
    repeated = ["-H", "Accept: a/b", "-H", "Cookie: id=1", "-H", "Accept: c/d"]
    url = f"{server.url}a".replace("//", "//me:mine@")
    assert fetch(url, "-L", *repeated).status == 0
    accepted = [
        [it for name, it in one.headers.items() if name.lower() == "accept"] for one in seen
    ]
    assert accepted == [["a/b", "c/d"]] * 3
    assert [one.headers.get("Cookie") for one in seen] == ["id=1", "id=1", None]


def test_credentials_of_a_url_precede_a_header(fetch: Command, serve: Serve) -> None:
    seen = list[Seen]()
    own, usual, token = urls_of(serve(noting(seen)), ["own", "usual", "token"])
    urls = [own.replace("//", "//me:mine@"), usual, token.replace("//", "//:only@")]
    header = f"authorization: {basic('all:ours')}"
    assert fetch(*urls, "-H", header, "--concurrency", "1").status == 0
    assert sent(seen) == [
        ("/own", basic("me:mine"), None),
        ("/usual", basic("all:ours"), None),
        ("/token", basic(":only"), None),
    ]
