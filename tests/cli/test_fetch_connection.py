"""How `aiothrottle fetch` connects: proxies, certificates, credentials and cookies."""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import trustme
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from aiothrottle.cli import main
from aiothrottle.cli.fetch.sending.cookies import read_cookies
from aiothrottle.cli.fetch.sending.proxies import choose_proxies, proxy_of
from tests.background import background

VARIABLES = [
    variable
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for variable in (name, name.upper())
]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the proxies of the machine."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@contextmanager
def in_thread(
    begin: Callable[[], Awaitable[Any]], end: Callable[[], Awaitable[None]]
) -> Generator[None]:
    """Run a loop in a thread, from `begin` until the block has ended, and then `end`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(_awaited(begin()), loop).result(10)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_awaited(end()), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


class Asked(NamedTuple):
    """A request to a proxy."""

    method: str
    target: str
    credentials: str | None


class Proxy:
    """A proxy on loopback: answers requests for http itself, and tunnels those for https."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0
        self._context = context
        self._tasks = set[asyncio.Task[None]]()

    @property
    def url(self) -> str:
        return f"http{'s' if self._context else ''}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = first.split()
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                self.asked.append(Asked(method, target, headers.get("proxy-authorization")))
                if method == "CONNECT":
                    await self._tunnel(target, reader, writer)
                    return
                body = f"proxied {target}".encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed
        finally:
            writer.close()

    async def _tunnel(
        self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, _, port = target.rpartition(":")
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_pump(reader, other_writer), _pump(other_reader, writer))
        finally:
            other_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
    writer.close()


@contextmanager
def proxy(context: ssl.SSLContext | None = None) -> Generator[Proxy]:
    made = Proxy(context)
    with in_thread(made.start, made.stop):
        yield made


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cast("Any", authority.issue_cert("127.0.0.1")).configure_cert(context)
    return context


@contextmanager
def https(authority: trustme.CA) -> Generator[str]:
    """Serve over TLS, with a certificate of the authority; yield the URL."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="in secret")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    addresses = list[Any]()

    async def begin() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context_of(authority)).start()
        addresses.extend(runner.addresses)

    with in_thread(begin, runner.cleanup):
        yield f"https://127.0.0.1:{addresses[0][1]}/"


# ---- proxies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_requests_go_through_the_proxy(scheme: str, out: Path) -> None:
    with proxy() as it:
        urls = ["http://one.test/a?b", "http://two.test:81/"]
        address = f"{scheme}127.0.0.1:{it.port}"
        assert main(["fetch", *urls, "--proxy", address, "-o", str(out), "-s"]) == 0
    assert sorted(it.asked) == [("GET", url, None) for url in urls]
    assert sorted(record["body"] for record in records(out)) == [f"proxied {url}" for url in urls]


def test_proxy_gets_its_credentials_on_each_request(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with proxy() as it:
        urls = ["http://one.test/a", "http://one.test/b"]
        address = it.url.replace("//", "//me:s%40cret@")
        options = ["-x", address, "--concurrency", "1", "-o", str(out), "-v"]
        assert main(["fetch", *urls, *options]) == 0
    expected = f"basic {base64.b64encode(b'me:s@cret').decode().lower()}"
    assert it.asked == [("GET", url, expected) for url in urls]
    assert it.connections == 1, "the second request has them too, on a connection that is reused"
    assert "cret" not in out.read_text() + capsys.readouterr().err


def test_https_goes_through_a_tunnel(authority: trustme.CA, tmp_path: Path, out: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "authority")
    with https(authority) as url, proxy() as it:
        options = ["--proxy", it.url.replace("//", "//me:pass@"), "-o", str(out), "-s"]
        trust = ["--cacert", str(tmp_path / "authority")]
        assert main(["fetch", url, *options, *trust, "-u", "you:word"]) == 0
    ((method, target, credentials),) = it.asked
    assert (method, target) == ("CONNECT", url.removeprefix("https://").rstrip("/"))
    assert credentials == f"basic {base64.b64encode(b'me:pass').decode().lower()}"
    assert records(out)[0]["body"] == "in secret"


def test_proxy_may_be_reached_over_tls(authority: trustme.CA, tmp_path: Path, out: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "authority")
    with proxy(context_of(authority)) as it:
        options = ["--proxy", it.url, "--cacert", str(tmp_path / "authority"), "-o", str(out)]
        assert main(["fetch", "http://one.test/", *options, "-s"]) == 0
    assert it.asked == [("GET", "http://one.test/", None)]


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_proxy_of_the_environment_is_used(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy() as it:
        monkeypatch.setenv(name, it.url)
        assert main(["fetch", "http://one.test/", "-o", str(out), "-s"]) == 0
    assert len(it.asked) == 1


def test_hosts_without_proxy_are_reached_directly(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "other.test, 127.0.0.1")
    with proxy() as it, background() as server:
        run = ["fetch", str(server.url), "--proxy", it.url, "-s"]
        assert main([*run, "-o", str(out)]) == 0
        assert (len(it.asked), server.audit.sent) == (0, 1)
        assert main(["fetch", str(server.url), "--proxy", it.url, "--noproxy", "", "-s"]) == 0
        assert (len(it.asked), server.audit.sent) == (1, 1)


def test_unreachable_proxy_is_a_failure_without_its_password(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with proxy() as it:
        address = it.url.replace("//", "//me:secret@")
    options = ["--proxy", address, "--retry", "0", "-o", str(out)]
    assert main(["fetch", "http://one.test/", *options]) == 1
    assert "Cannot connect" in records(out)[0]["error"]
    assert "secret" not in out.read_text() + capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.org/", "http://one:1"),
        ("https://example.org/", "http://two:2"),
        ("http://a.local/", None),
        ("http://b.a.local/", None),
        ("http://nota.local/", "http://one:1"),
        ("http://port.org:8080/", None),
        ("http://port.org/", "http://one:1"),
        ("http://10.1.2.3/", None),
        ("http://11.1.2.3/", "http://one:1"),
        ("http://[::1]:99/", None),
        ("http://star.org/", None),
        ("http://x.star.org/", None),
    ],
)
def test_each_url_has_the_proxy_of_its_host(url: str, expected: str | None) -> None:
    environment = {
        "http_proxy": "one:1",
        "HTTP_PROXY": "http://ignored:9",
        "HTTPS_PROXY": "http://two:2",
        "no_proxy": ".a.local, PORT.org:8080,10.0.0.0/8 ,::1,*.star.org,",
    }
    proxies = choose_proxies(None, None, environment)
    assert proxies is not None
    assert proxies.of(URL(url)) == (None if expected is None else URL(expected))


def test_star_and_empty_variables_switch_proxies_off() -> None:
    for url in ("http://a.org/", "http://127.0.0.1/"):
        proxies = choose_proxies(proxy_of("p:1"), "*", {})
        assert proxies is not None
        assert proxies.of(URL(url)) is None
    assert choose_proxies(None, None, {"http_proxy": "", "HTTP_PROXY": "http://p"}) is None
    # In a CGI program a client chooses it.
    assert choose_proxies(None, None, {"HTTP_PROXY": "http://p", "REQUEST_METHOD": "GET"}) is None


# ---- certificates ----------------------------------------------------------------------------


def test_certificate_has_to_be_valid(authority: trustme.CA, tmp_path: Path, out: Path) -> None:
    (tmp_path / "other").mkdir()
    trustme.CA().cert_pem.write_to_path(tmp_path / "other" / "authority")
    authority.cert_pem.write_to_path(tmp_path / "authority")
    with https(authority) as url:
        for untrusting in ([], ["--cacert", str(tmp_path / "other" / "authority")]):
            assert main(["fetch", url, *untrusting, "-o", str(out), "-s"]) == 1
            (record,) = records(out)
            assert "CERTIFICATE_VERIFY_FAILED" in record["error"]
            assert record["attempts"] == 1, "another attempt would find the same certificate"
            out.unlink()
        for trusting in (["--cacert", str(tmp_path / "authority")], ["-k"], ["--insecure"]):
            assert main(["fetch", url, *trusting, "-o", str(out), "-s"]) == 0
            assert records(out)[0]["body"] == "in secret"
            out.unlink()


# ---- credentials -----------------------------------------------------------------------------


class Seen(NamedTuple):
    path: str
    credentials: str | None
    cookie: str | None


def noting(seen: list[Seen], **answers: Callable[[], web.Response]) -> Any:  # noqa: ANN401
    async def note(request: web.Request) -> web.Response:
        headers = request.headers
        seen.append(Seen(request.path, headers.get("Authorization"), headers.get("Cookie")))
        answer = answers.get(request.path.strip("/"), web.Response)
        return answer()

    return note


def basic(pair: str) -> str:
    return f"Basic {base64.b64encode(os.fsencode(pair)).decode()}"


def test_user_is_sent_to_the_first_origin_only(out: Path) -> None:
    seen, seen_there = list[Seen](), list[Seen]()
    with background(handler=noting(seen_there)) as other:
        there = f"{other.url}there"
        handler = noting(
            seen,
            a=lambda: web.Response(status=302, headers={"Location": "/b"}),
            b=lambda: web.Response(status=302, headers={"Location": there}),
        )
        with background(handler=handler) as server:
            run = ["fetch", f"{server.url}a", "-L", "-u", "m\u00e9:p:ss", "-b", "id=1"]
            assert main([*run, "-o", str(out), "-s"]) == 0
    credentials = basic("m\u00e9:p:ss")
    assert seen == [("/a", credentials, "id=1"), ("/b", credentials, "id=1")]
    assert seen_there == [("/there", None, None)]


def test_user_may_have_bytes_that_are_no_utf_8(out: Path) -> None:
    seen = list[Seen]()
    with background(handler=noting(seen)) as server:
        run = ["fetch", str(server.url), "-u", "m\udce9:secret"]  # as Python decodes arguments
        assert main([*run, "-o", str(out), "-s"]) == 0
    assert seen == [("/", basic("m\udce9:secret"), None)]


def test_credentials_of_a_url_precede_user(out: Path) -> None:
    seen = list[Seen]()
    with background(handler=noting(seen)) as server:
        own = f"{server.url}own".replace("//", "//me:mine@")
        token = f"{server.url}token".replace("//", "//:only@")
        urls = [own, f"{server.url}usual", token]
        run = ["fetch", *urls, "-u", "you:yours", "--concurrency", "1"]
        assert main([*run, "-o", str(out), "-s"]) == 0
    assert seen == [
        ("/own", basic("me:mine"), None),
        ("/usual", basic("you:yours"), None),
        ("/token", basic(":only"), None),
    ]


# ---- cookies ---------------------------------------------------------------------------------


def setting() -> web.Response:
    response = web.Response()
    response.headers["Set-Cookie"] = "got={a:1}; Path=/"
    return response


def test_cookies_are_sent_and_not_kept() -> None:
    seen = list[Seen]()
    with background(handler=noting(seen, a=setting)) as server:
        urls = [f"{server.url}a", f"{server.url}b"]
        run = ["fetch", *urls, "--concurrency", "1", "-s"]
        assert main([*run, "-b", "one=1; two=2", "--cookie", "three=3"]) == 0
        assert main(run) == 0
    assert [it.cookie for it in seen] == ["one=1; two=2; three=3"] * 2 + [None] * 2


def test_cookies_are_kept_with_a_file_or_nothing(tmp_path: Path) -> None:
    cookies = tmp_path / "cookies.txt"
    with background() as other:
        there = str(other.url)
    seen, seen_there = list[Seen](), list[Seen]()
    handler = noting(
        seen, a=lambda: web.Response(status=302, headers={"Location": there}), b=setting
    )
    with background(handler=noting(seen_there)) as other, background(handler=handler) as server:
        there = str(other.url).replace("127.0.0.1", "localhost")
        cookies.write_text(
            "# Netscape HTTP Cookie File\n\n"
            "127.0.0.1\tFALSE\t/\tFALSE\t0\tsession\ts1\n"
            f'#HttpOnly_127.0.0.1\tFALSE\t/\tFALSE\t{time.time() + 1000:.0f}\tlater\t"x y"\n'
            f"127.0.0.1\tFALSE\t/\tFALSE\t{time.time() - 1000:.0f}\tearlier\t3\n"
            "127.0.0.1\tFALSE\t/deep\tFALSE\t0\tdeep\t4\n"
            "127.0.0.1\tFALSE\t/\tTRUE\t0\tsecure\t5\n"
            ".example.org\tTRUE\t/\tFALSE\t0\tother\t6\n"
        )
        urls = [f"{server.url}{name}" for name in ("a", "b", "c")]
        run = ["fetch", *urls, "-L", "--concurrency", "1", "-s"]
        assert main([*run, "-b", str(cookies)]) == 0
        begin = ['later="x y"', "session=s1"]
        sent = [sorted((it.cookie or "").split("; ")) for it in seen]
        assert sent == [begin, begin, sorted([*begin, "got={a:1}"])]
        assert [it.cookie for it in seen_there] == [None], "another host"
        seen.clear()
        assert main([*run, "-b", ""]) == 0
        assert [it.cookie for it in seen] == [None, None, "got={a:1}"]


@given(
    st.tuples(
        st.one_of(st.text(), st.sampled_from(["a.org", ".[::1]", "[::1]:8.@"])),
        st.sampled_from(["TRUE", "FALSE", ""]),
        st.text(),
        st.sampled_from(["TRUE", "FALSE"]),
        st.one_of(st.floats().map(str), st.just("0")),
        st.text(),
        st.text(),
    )
)
def test_any_text_is_cookies_or_an_error(fields: tuple[str, ...]) -> None:
    text = "\t".join(fields)
    with contextlib.suppress(ValueError):
        for cookie in read_cookies(text):
            assert cookie.morsel.key


# ---- invalid options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--proxy", "socks5://me:secret@h:1"], "got 'socks5://***@h:1'"),
        (["--proxy", "http://"], "must be a proxy such as"),
        (["--proxy", "http://h:port"], "must be a proxy such as"),
        (["--cacert", "no/such/file"], "no/such/file cannot be read: No such file"),
        (["--cacert", __file__], "has no certificate in PEM"),
        (["--cacert", __file__, "-k"], "has no certificate in PEM"),
        (["-u", "secret"], "must be NAME:PASSWORD, got no colon"),
        (["-u", "a:b", "-H", "authorization: secret"], "--user sets the header Authorization"),
        (["-b", "a=b", "-H", "Cookie: secret"], "--cookie sets the header Cookie"),
        (["-b", "no/such/file"], "no/such/file cannot be read: No such file"),
        (["-b", __file__], "line 1 is no cookie in Netscape's format"),
        (["-b", "secret=a\nb"], "must be NAME=VALUE, without control characters"),
    ],
)
def test_invalid_connection_gives_an_error(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "http://127.0.0.1:1/", *arguments])
    assert ended.value.code == 2
    messages = capsys.readouterr().err
    assert complaint in messages
    assert "secret" not in messages


def test_certificates_are_either_ignored_or_checked(
    authority: trustme.CA, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "authority")
    with pytest.raises(SystemExit):
        main(["fetch", "http://127.0.0.1:1/", "-k", "--cacert", str(tmp_path / "authority")])
    assert "--insecure checks no certificate: leave out --cacert" in capsys.readouterr().err


def test_invalid_proxy_of_the_environment_is_named(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To ignore it would send directly what its user wants to go through it."""
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "http://127.0.0.1:1/", "-o", str(out)])
    assert ended.value.code == 2
    assert not out.exists()
    messages = capsys.readouterr().err
    assert "the environment variable ALL_PROXY must be a proxy such as" in messages
    assert "secret" not in messages
