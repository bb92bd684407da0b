"""A small S3: it answers as the real one, and may throttle."""

from typing import Any

from aiohttp import web

from tests.support.serving import Handler

#: What `create_client` needs besides the address.
CREDENTIALS: dict[str, Any] = {
    "region_name": "us-east-1",
    "aws_access_key_id": "name",
    "aws_secret_access_key": "secret",
}


async def s3(request: web.Request) -> web.Response:
    body = f"object {request.path}".encode()
    if request.path == "/":
        return xml("<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>")
    if request.method == "HEAD":
        return web.Response(headers={"Content-Length": str(len(body)), "ETag": '"1"'})
    if request.method == "PUT":
        await request.read()
        body = b""
    return web.Response(body=body, headers={"ETag": '"1"'})


def xml(text: str, status: int = 200) -> web.Response:
    text = f'<?xml version="1.0"?>{text}'
    return web.Response(text=text, status=status, content_type="application/xml")


def slow_down(times: int, answer: Handler = s3) -> Handler:
    remaining = times

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal remaining
        if remaining == 0:
            return await answer(request)
        remaining -= 1
        await request.read()
        return xml("<Error><Code>SlowDown</Code><Message>Please do.</Message></Error>", 503)

    return handler
