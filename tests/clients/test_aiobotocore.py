"""The recipe of aiobotocore, and its adapter: requests wait before they are signed, and no call
keeps a permit, however it ends.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import KeyedRateLimiter, RateLimiter, ThrottleTimeout
from aiothrottle.events import Paused
from aiothrottle.integrations.aiobotocore import throttle_session
from tests.clients.checks import answering, assert_idle, finish
from tests.clients.s3 import CREDENTIALS, s3, slow_down
from tests.integrations.clients import Clock
from tests.support.observing import observed
from tests.support.serving import endless, hang_up, never, serving, until
from tests.support.virtually import counts

aiobotocore = pytest.importorskip("aiobotocore.session")
exceptions = pytest.importorskip("botocore.exceptions")

# botocore makes naive times.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")


@asynccontextmanager
async def client_of(
    session: Any, url: object, service: str = "s3", **options: Any
) -> AsyncGenerator[Any]:
    options = {**CREDENTIALS, "endpoint_url": str(url), **options}
    async with session.create_client(service, **options) as client:
        yield client


async def read(client: Any, key: str = "key") -> bytes:
    response = await client.get_object(Bucket="bucket", Key=key)
    async with response["Body"] as body:
        content: bytes = await body.read()
        return content


async def test_error_code_in_a_400_pauses_the_limiter(clock: Clock) -> None:
    error = {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}
    amazon = partial(answering, content_type="application/x-amz-json-1.0")
    script = amazon(error, status=400), amazon({"TableNames": []})
    limiter = clock.limiter("100/s")
    session = aiobotocore.get_session()
    throttle_session(session, "dynamodb", limiter)
    paused = observed(limiter, Paused)
    async with serving(*script) as (url, seen), client_of(session, url, "dynamodb") as client:
        await finish(clock, limiter, client.list_tables())
    assert len(seen) == 2
    assert len(paused) == 1
    await assert_idle(limiter)


async def test_failed_query_is_no_failed_request() -> None:
    """The response of some services has an "Error" of its own, which is a text."""
    limiter = RateLimiter(concurrency_limit=1)
    session = aiobotocore.get_session()
    throttle_session(session, "redshift-data", limiter)
    query = {"Id": "1", "Status": "FAILED", "Error": "ERROR: no such table"}
    answer = answering(query, content_type="application/x-amz-json-1.1")
    async with serving(answer) as (url, _), client_of(session, url, "redshift-data") as client:
        assert (await client.describe_statement(Id="1"))["Error"] == query["Error"]
    await assert_idle(limiter)


def throttled(limiter: RateLimiter | KeyedRateLimiter, **options: Any) -> Any:
    session = aiobotocore.AioSession()
    throttle_session(session, "s3", limiter, **options)
    return session


async def test_body_holds_its_slot_until_it_is_closed_or_max_hold(clock: Clock) -> None:
    limiter = clock.limiter()
    session = throttled(limiter, max_hold=60)
    async with serving(endless) as (url, _), client_of(session, url) as client:
        response = await client.get_object(Bucket="bucket", Key="key")
        async with response["Body"]:
            assert await response["Body"].read(10) == b"x" * 10
            assert counts(limiter) == (1, 0)
        assert counts(limiter) == (0, 0)
        response = await client.get_object(Bucket="bucket", Key="key")
        await clock.skip(59)
        assert counts(limiter) == (1, 0)
        await clock.skip(2)
        assert counts(limiter) == (0, 0)
        with pytest.raises(Exception, match=r"(?i)closed"):
            await response["Body"].read()


async def test_cancelled_call_leaves_no_permit() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    errors: list[object] = []  # kept, as `gather` does
    async with (
        serving(never, never, s3) as (url, seen),
        client_of(throttled(limiter), url) as client,
    ):
        for _ in range(2):
            call = asyncio.create_task(read(client))
            await until(lambda: len(seen) == len(errors) + 1)
            assert counts(limiter) == (1, 0)
            call.cancel()
            errors.extend(await asyncio.gather(call, return_exceptions=True))
            assert counts(limiter) == (0, 0)
        async with limiter.throttle():
            waiter = asyncio.create_task(read(client))
            await until(lambda: counts(limiter) == (1, 1))
            waiter.cancel()
            await asyncio.wait([waiter])
            assert counts(limiter) == (1, 0)
        await read(client)
        assert len(seen) == 3
    await assert_idle(limiter)


async def test_unsigned_request_releases_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/does/not/exist")
    limiter = RateLimiter(concurrency_limit=1)
    no_credentials: dict[str, Any] = {"aws_access_key_id": None, "aws_secret_access_key": None}
    async with (
        serving(s3) as (url, seen),
        client_of(throttled(limiter), url, **no_credentials) as client,
    ):
        for _ in range(2):
            with pytest.raises(exceptions.NoCredentialsError):
                await read(client)
    assert not seen
    await assert_idle(limiter)


async def test_lost_connection_releases_its_slot(clock: Clock) -> None:
    limiter = clock.limiter("100/s")
    async with serving(hang_up) as (url, seen), client_of(throttled(limiter), url) as client:
        with pytest.raises(exceptions.HTTPClientError):
            await finish(clock, limiter, client.create_multipart_upload(Bucket="bucket", Key="key"))
        assert limiter.statistics().granted == len(seen) > 1
    await assert_idle(limiter)


async def test_queue_timeout_ends_a_call_and_signing_is_free() -> None:
    limiter = RateLimiter("1/min")
    session = throttled(limiter, queue_timeout=1)
    async with serving(s3) as (url, seen), client_of(session, url) as client:
        await read(client)
        with pytest.raises(ThrottleTimeout):
            await read(client)
        assert len(seen) == 1
    limiter = RateLimiter("1/min", concurrency_limit=1)
    async with client_of(throttled(limiter), "http://localhost") as client:
        for _ in range(3):
            params = {"Bucket": "bucket", "Key": "key"}
            assert "Signature" in await client.generate_presigned_url("get_object", Params=params)
    assert limiter.statistics().granted == 0


async def test_session_of_httpx_releases_its_slot_with_the_headers() -> None:
    config = pytest.importorskip("aiobotocore.config")
    httpxsession = pytest.importorskip("aiobotocore.httpxsession")
    limiter = RateLimiter(concurrency_limit=1)
    options = {"config": config.AioConfig(http_session_cls=httpxsession.HttpxSession)}
    async with serving(s3) as (url, _), client_of(throttled(limiter), url, **options) as client:
        response = await client.get_object(Bucket="bucket", Key="key")
        assert counts(limiter) == (0, 0)
        async with response["Body"]:
            assert await response["Body"].read() == b"object /bucket/key"
    assert limiter.statistics().granted == 1


async def test_operation_has_a_key_and_may_have_a_limiter() -> None:
    keyed, uploads = KeyedRateLimiter(concurrency_limit=1), RateLimiter(concurrency_limit=1)
    session = throttled(keyed)
    throttle_session(session, "s3.PutObject", uploads)
    async with serving(s3) as (url, _), client_of(session, url) as client:
        await client.list_buckets()
        await client.put_object(Bucket="bucket", Key="key", Body=b"text")
        granted = [keyed[name].statistics().granted for name in ("ListBuckets", "PutObject")]
        assert (granted, uploads.statistics().granted) == ([1, 1], 1)
    await assert_idle(uploads)


async def test_request_for_a_signature_does_not_wait_for_its_caller() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    session = throttled(limiter)
    async with serving(s3) as (url, seen), client_of(session, url) as client:

        async def sign_in(operation_name: str, **_: object) -> None:
            if operation_name == "GetObject":  # as S3 Express signs in to a bucket
                await client.list_buckets()

        client.meta.events.register("before-sign.s3", sign_in)
        assert await read(client) == b"object /bucket/key"
        assert len(seen) == 2
    assert limiter.statistics().granted == 1
    await assert_idle(limiter)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="max_hold must be"):
        throttle_session(aiobotocore.get_session(), "s3", RateLimiter(1), max_hold=0)
    with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
        throttle_session(aiobotocore.get_session(), "s3", "100/s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# ---- signatures ----------------------------------------------------------------------------------


async def test_signature_is_fresh_after_a_long_queue(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = slow_down(3)

    def date(**_: object) -> datetime:
        return datetime(2026, 1, 1) + timedelta(seconds=int(clock.time()))

    async def valid_for_two_seconds(request: web.Request) -> web.StreamResponse:
        signed = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
        if date() - signed > timedelta(seconds=2):
            return web.Response(status=403, text="<Error><Code>RequestExpired</Code></Error>")
        return await answer(request)

    monkeypatch.setattr("botocore.auth.get_current_datetime", date)
    limiter = clock.limiter("1/s", concurrency_limit=2)
    paused = observed(limiter, Paused)
    async with (
        serving(valid_for_two_seconds) as (url, seen),
        client_of(throttled(limiter), url) as client,
    ):
        began = clock.time()
        bodies = await finish(clock, limiter, *(read(client) for _ in range(8)))
        assert clock.time() - began > 8
        # The retries paused the limiter, took a token and were signed anew.
        assert len(seen) == limiter.statistics().granted == 8 + 3
        assert paused
    assert set(bodies) == {b"object /bucket/key"}
    await assert_idle(limiter)
