"""Fetch the pages in the sitemaps of some sites, by the rules of each site's robots.txt.

    python examples/sitemap_crawler.py                    # two sites that it serves itself
    python examples/sitemap_crawler.py https://www.python.org/ > pages.jsonl

Each site gets one request at a time and two per second, or as few as the Crawl-delay in its
robots.txt asks for. A slow site delays no other. For each page there is a line, with the status
null if the page cannot be fetched:

    {"url": ..., "status": ..., "bytes": ...}
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from urllib.robotparser import RobotFileParser
from xml.etree import ElementTree as ET

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from aiothrottle import KeyedRateLimiter, Rate, RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer

USER_AGENT = "aiothrottle-sitemap-crawler"
NAMESPACE = "{http://www.sitemaps.org/schemas/sitemap/0.9}"


class Site:
    """Crawls one site."""

    def __init__(self, url: URL, session: ThrottledSession, limiter: KeyedRateLimiter) -> None:
        self.url = url
        self.session = session
        self.limiter = limiter
        self.robots = RobotFileParser()
        self.seen: set[str] = set()

    async def crawl(self) -> None:
        """Fetch all pages that robots.txt allows."""
        await self.read_robots()
        for sitemap in self.robots.site_maps() or [str(self.url.join(URL("/sitemap.xml")))]:
            async for page in self.pages(sitemap):
                status, body = await self.fetch(page)
                print(json.dumps({"url": page, "status": status, "bytes": len(body)}), flush=True)

    async def read_robots(self) -> None:
        """Read the rules. A Crawl-delay becomes the limit of this site."""
        status, body = await self.fetch(str(self.url.join(URL("/robots.txt"))))
        rules = body.decode(errors="replace")
        if status in {404, 410}:
            rules = ""  # there is no robots.txt, so everything is allowed
        elif status != 200:
            rules = "User-agent: *\nDisallow: /"
        self.robots.parse(rules.splitlines())
        if delay := self.robots.crawl_delay(USER_AGENT):
            self.limiter.update(host_of(self.url), rate_limit=Rate(1, float(delay)))

    async def pages(self, sitemap: str) -> AsyncIterator[str]:
        """Yield the addresses in a sitemap, and in the sitemaps that it lists."""
        _, body = await self.fetch(sitemap)
        try:
            root = ET.fromstring(body)  # noqa: S314 - expat bounds what entities expand to
        except ET.ParseError as error:
            print(f"{sitemap}: {error}", file=sys.stderr)
            return
        for element in root.iterfind(f"*/{NAMESPACE}loc"):
            address = (element.text or "").strip()
            if address in self.seen or not self.may_fetch(address):
                continue
            self.seen.add(address)
            if root.tag == f"{NAMESPACE}urlset":
                yield address
            else:
                async for page in self.pages(address):
                    yield page

    def may_fetch(self, address: str) -> bool:
        """Return whether an address is of this site, and allowed by its robots.txt."""
        if host_of(URL(address)) != host_of(self.url):
            return False
        return self.robots.can_fetch(USER_AGENT, address)

    async def fetch(self, address: str) -> tuple[int | None, bytes]:
        """Return the status and the body. The session waits for the limit of the host."""
        try:
            async with self.session.get(address) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            print(f"{address}: {error}", file=sys.stderr)
            return None, b""


def host_of(url: URL) -> str:
    """Return the key of a limit: the host and port."""
    return url.authority


async def crawl(urls: list[URL]) -> None:
    """Crawl all sites at once."""
    limiter = KeyedRateLimiter(
        "2/s",  # of each host
        concurrency_limit=1,
        parent=RateLimiter("50/s", concurrency_limit=20),  # of all hosts together
    )
    async with (
        ThrottledSession(
            limiter, key=lambda request: host_of(request.url), headers={"User-Agent": USER_AGENT}
        ) as session,
        asyncio.TaskGroup() as group,
    ):
        for url in urls:
            group.create_task(Site(url, session, limiter).crawl())


# ---- two sites -------------------------------------------------------------------------------


def site(pages: list[str], robots: str) -> Handler:
    """Return the handler of a site with these pages, some of which may be disallowed."""

    async def handler(request: web.Request) -> web.Response:
        origin = request.url.origin()
        if request.path == "/robots.txt":
            return web.Response(text=f"{robots}\nSitemap: {origin}/sitemap-index.xml")
        if request.path == "/sitemap-index.xml":
            location = f"<sitemap><loc>{origin}/sitemap.xml</loc></sitemap>"
            return xml("sitemapindex", location)
        if request.path == "/sitemap.xml":
            return xml("urlset", "".join(f"<url><loc>{origin}{it}</loc></url>" for it in pages))
        return web.Response(text=f"This is {request.path}.")

    return handler


def xml(root: str, content: str) -> web.Response:
    """Return a sitemap."""
    text = f'<{root} xmlns="{NAMESPACE[1:-1]}">{content}</{root}>'
    return web.Response(text=text, content_type="application/xml")


async def crawl_own_sites() -> None:
    """Serve two sites, one of which has a Crawl-delay and a folder that it keeps for itself."""
    slow = site(["/", "/about", "/private/x"], "User-agent: *\nCrawl-delay: 1\nDisallow: /private")
    quick = site([f"/{number}" for number in range(6)], "User-agent: *\nAllow: /")
    async with (
        RateLimitedServer("1/s", concurrency_limit=1, handler=slow) as one,
        RateLimitedServer("2/s", concurrency_limit=1, handler=quick) as two,
    ):
        await crawl([one.url, two.url])
        audits = one.audit, two.audit
    sent, throttled = (sum(audit.sent for audit in audits), sum(it.throttled for it in audits))
    print(f"{sent} requests, {throttled} throttled", file=sys.stderr)


def main() -> None:
    """Crawl the sites of the command line, or two of its own."""
    parser = argparse.ArgumentParser(description="Fetch the pages in the sitemaps of some sites.")
    parser.add_argument("urls", nargs="*", type=URL, help="of the sites")
    options = parser.parse_args()
    asyncio.run(crawl(options.urls) if options.urls else crawl_own_sites())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
