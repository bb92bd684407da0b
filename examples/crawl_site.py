"""Crawl one web site, politely, and write a line of JSON for each page.

    python examples/crawl_site.py https://example.org/ --rate 2 --pages 100 > pages.jsonl

With no address it crawls a little site that it serves itself. Each line is:

    {"url": ..., "status": ..., "title": ..., "links": [...], "seconds": ...}

`links` are the links within the site, a redirect counts as one, and `seconds` is the
time from the start to the page. A page that cannot be fetched has the status null. Lines are
written as the pages come, so Ctrl-C loses none.
"""

import argparse
import asyncio
import json
import sys
import time
from html.parser import HTMLParser
from urllib.robotparser import RobotFileParser

import aiohttp
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer, linked_pages

USER_AGENT = "aiothrottle-crawl-site/1.0"


class Page(HTMLParser):
    """The title and the links of an HTML page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self._in_title = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the address of a link, or the start of the title."""
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
        elif tag == "title" and not self.title:  # pictures in the page may have titles too
            self._in_title = True

    def handle_endtag(self, tag: str) -> None:
        """Record the end of the title."""
        if tag == "title":
            self._in_title = False

    def handle_data(self, data: str) -> None:
        """Collect the title."""
        if self._in_title:
            self.title += data


class Crawler:
    """Follows the links of one site."""

    def __init__(self, session: ThrottledSession, start: URL, most_pages: int) -> None:
        self.session = session
        self.start = start
        self.most_pages = most_pages
        self.seen: set[URL] = set()
        self.robots = RobotFileParser()

    async def run(self) -> None:
        """Crawl until no link is left, or enough pages were fetched."""
        self.started_at = time.monotonic()
        await self.read_robots()
        async with asyncio.TaskGroup() as self.tasks:
            self.follow(self.start)

    async def read_robots(self) -> None:
        """Read the rules of the site for crawlers."""
        address = self.start.join(URL("/robots.txt"))
        rules = "User-agent: *\nDisallow: /"  # until the site answers
        try:
            async with self.session.get(address) as response:
                if response.ok:
                    rules = await response.text(errors="replace")
                elif 400 <= response.status < 500 and response.status not in {401, 403, 429}:
                    rules = ""  # there is no robots.txt, so everything is allowed
        except (aiohttp.ClientError, TimeoutError) as error:
            print(f"{address}: {error}", file=sys.stderr)
        self.robots.parse(rules.splitlines())

    def follow(self, url: URL) -> None:
        """Visit a page once, if the rules allow it. The session makes each request wait."""
        if url in self.seen or len(self.seen) >= self.most_pages:
            return
        if self.robots.can_fetch(USER_AGENT, str(url)):
            self.seen.add(url)
            self.tasks.create_task(self.visit(url))

    async def visit(self, url: URL) -> None:
        """Get a page, write its line, and follow its links."""
        status, page = None, Page("")
        try:
            async with self.session.get(url, allow_redirects=False) as response:
                status = response.status
                if response.content_type == "text/html":
                    page = Page(await response.text(errors="replace"))
                if "Location" in response.headers:
                    page.links.append(response.headers["Location"])
        except (aiohttp.ClientError, TimeoutError) as error:
            print(f"{url}: {error}", file=sys.stderr)
        links = self.links_within_site(url, page.links)
        line = {
            "url": str(url),
            "status": status,
            "title": page.title.strip(),
            "links": [str(link) for link in links],
            "seconds": round(time.monotonic() - self.started_at, 3),
        }
        print(json.dumps(line), flush=True)
        for link in links:
            self.follow(link)

    def links_within_site(self, url: URL, links: list[str]) -> list[URL]:
        """Return the addresses of links within the site."""
        found: dict[URL, None] = {}
        for link in links:
            try:
                target = url.join(URL(link)).with_fragment(None)
                if target.origin() == self.start.origin():
                    found[target] = None
            except ValueError:
                pass  # "mailto:" and the like
        return list(found)


async def crawl(url: URL, options: argparse.Namespace) -> None:
    """Crawl the site of `url`."""
    headers = {"User-Agent": f"{USER_AGENT} ({options.contact})" if options.contact else USER_AGENT}
    async with ThrottledSession(options.limiter, headers=headers) as session:
        crawler = Crawler(session, url, options.pages)
        await crawler.run()
    print(f"{len(crawler.seen)} pages of {url.origin()}", file=sys.stderr)


async def crawl_own_site(options: argparse.Namespace) -> None:
    """Serve a little site with a limit of the same rate, and crawl it."""
    async with RateLimitedServer(
        options.rate, concurrency_limit=options.concurrency, handler=linked_pages(20)
    ) as server:
        await crawl(server.url, options)
        audit = server.audit
        print(f"{audit.sent} requests, {audit.throttled} throttled", file=sys.stderr)


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Crawl one web site, politely.")
    parser.add_argument("url", nargs="?", type=web_address, help="the first page")
    parser.add_argument("--rate", type=float, default=10, help="requests per second (10)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at once (4)")
    parser.add_argument("--pages", type=int, default=1000, help="the most pages (1000)")
    parser.add_argument("--contact", help="an address at which the site can reach you")
    options = parser.parse_args()
    try:
        options.limiter = RateLimiter(options.rate, concurrency_limit=options.concurrency)
    except ValueError as error:
        parser.error(str(error))
    return options


def web_address(text: str) -> URL:
    """Read the address of the first page."""
    url = URL(text)
    if url.scheme not in {"http", "https"} or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} is not like http://example.org/")
    return url.with_fragment(None)


def main() -> None:
    """Crawl."""
    options = read_options()
    asyncio.run(crawl(options.url, options) if options.url else crawl_own_site(options))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
