"""Copy the objects of one S3 bucket into another, under a limit.

    python examples/s3_copy.py                            # against a fake S3
    python examples/s3_copy.py s3://from/photos/ s3://to/backup/ --rate 100

The second line needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of credentials
that boto reads. AWS_ENDPOINT_URL names another server with the same API. S3 copies within itself:
the objects, of up to 5 GB, do not pass through this program.

Needs ``pip install aiobotocore``.
"""

import argparse
import asyncio
import sys
from collections import Counter
from typing import Any
from xml.sax.saxutils import escape

from aiobotocore.session import get_session
from aiohttp import web
from aiohttp.typedefs import Handler
from botocore.exceptions import NoCredentialsError
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.integrations.aiobotocore import throttle_session
from aiothrottle.testing import RateLimitedServer


async def copy(source: URL, target: URL, rate: float, **options: object) -> None:
    """Copy all objects below one URL to another."""
    # Each request waits before it is signed, and so does each retry of aiobotocore. A SlowDown of
    # S3 pauses all of them. The client has 10 connections.
    limiter = RateLimiter(rate, concurrency_limit=10)
    counts: Counter[str] = Counter()
    limiter.observe(lambda event: counts.update([type(event).__name__]))
    session: Any = get_session()
    throttle_session(session, "s3", limiter)
    prefix = source.path.removeprefix("/")
    copied = 0
    async with session.create_client("s3", **options) as client:

        async def copy_object(key: str) -> None:
            nonlocal copied
            await client.copy_object(
                CopySource={"Bucket": source.host, "Key": key},
                Bucket=target.host,
                Key=target.path.removeprefix("/") + key.removeprefix(prefix),
            )
            copied += 1

        listing = client.get_paginator("list_objects_v2")
        async for page in listing.paginate(Bucket=source.host, Prefix=prefix):
            async with asyncio.TaskGroup() as group:
                for entry in page.get("Contents", []):
                    group.create_task(copy_object(entry["Key"]))
    granted = limiter.statistics().granted
    print(f"{copied} objects copied, {granted} requests, {counts['Throttled']} throttled")


# ---- a fake S3 -------------------------------------------------------------------------------

PER_PAGE = 40


async def run_offline(rate: float) -> None:
    """Copy the objects of a fake S3, which has the same limit."""
    objects = {f"/from/photos/{number:03}.jpg": b"a picture" for number in range(100)}
    server = RateLimitedServer(rate, handler=fake_s3(objects))
    source, target = URL("s3://from/photos/"), URL("s3://to/backup/")
    async with server:
        options: dict[str, Any] = {
            "aws_access_key_id": "of no account",
            "aws_secret_access_key": "secret",
            "endpoint_url": str(server.url),
            "region_name": "us-east-1",
        }
        await copy(source, target, rate, **options)
    print(f"{sum(path.startswith('/to/backup/') for path in objects)} objects in the target")


def fake_s3(objects: dict[str, bytes]) -> Handler:
    """Return a handler that lists buckets and copies objects."""

    async def s3(request: web.Request) -> web.Response:
        if "x-amz-copy-source" in request.headers:
            source = URL(request.headers["x-amz-copy-source"], encoded=True).path
            objects[request.path] = objects[f"/{source.removeprefix('/')}"]
            return xml("<CopyObjectResult><ETag>1</ETag></CopyObjectResult>")
        root = f"{request.path}/"
        keys = sorted(path.removeprefix(root) for path in objects if path.startswith(root))
        first = int(request.query.get("continuation-token", "0"))
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key></Contents>"
            for key in keys[first : first + PER_PAGE]
            if key.startswith(request.query["prefix"])
        )
        if first + PER_PAGE < len(keys):
            listed += f"<NextContinuationToken>{first + PER_PAGE}</NextContinuationToken>"
            listed += "<IsTruncated>true</IsTruncated>"
        return xml(f"<ListBucketResult>{listed}</ListBucketResult>")

    return s3


def xml(text: str) -> web.Response:
    """Return a response of S3."""
    return web.Response(text=f'<?xml version="1.0"?>{text}', content_type="application/xml")


def place(text: str) -> URL:
    """Read the address of a bucket, or of a folder in it."""
    url = URL(text)
    if url.scheme != "s3" or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} is not like s3://bucket/folder/")
    return url


def main() -> None:
    """Copy what the command line names, or within a fake S3."""
    parser = argparse.ArgumentParser(description="Copy the objects of one S3 bucket into another.")
    parser.add_argument("source", nargs="?", type=place, help="such as s3://from/photos/")
    parser.add_argument("target", nargs="?", type=place, help="such as s3://to/backup/")
    parser.add_argument("--rate", type=float, default=50, help="requests per second (50)")
    options = parser.parse_args()
    if options.source is None:
        asyncio.run(run_offline(options.rate))
        return
    if options.target is None:
        parser.error("a source needs a target, such as s3://to/backup/")
    try:
        asyncio.run(copy(options.source, options.target, options.rate))
    except NoCredentialsError:
        parser.error("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to those of your account")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
