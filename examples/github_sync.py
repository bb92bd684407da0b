"""Sync the issues of a GitHub repository and their comments, as fast as GitHub's quota allows.

    python examples/github_sync.py                        # against a fake GitHub
    GITHUB_TOKEN=... python examples/github_sync.py aio-libs/yarl

The second line writes aio-libs-yarl.json. Run again, it fetches only what has changed since.

The limit is not in this program: the limiter takes it from the x-ratelimit headers of the
responses, so it is right for every kind of token and notices other programs with the same token.
GitHub rounds its resets to whole seconds, so one request may be throttled at each of them.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from yarl import URL

from aiothrottle import RateLimiter, Retry
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer

GITHUB = URL("https://api.github.com")
Issues = dict[str, dict[str, Any]]


async def pages(session: ThrottledSession, url: URL) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the pages of a list. Each response links to the next page."""
    following: URL | None = url
    while following is not None:
        async with session.get(following) as response:
            response.raise_for_status()
            yield await response.json()
            following = (
                URL(str(response.links["next"]["url"])) if "next" in response.links else None
            )


async def sync(api: URL, repository: str, issues: Issues, token: str) -> Counter[str]:
    """Fetch the issues that have changed, and their comments; count what happened."""
    # A quota of an hour may be used up: then the limiter waits for the reset.
    retry = Retry(max_retry_after=3600)
    limiter = RateLimiter("server", concurrency_limit=10)
    counts: Counter[str] = Counter()
    limiter.observe(lambda event: counts.update([type(event).__name__]))
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    async with ThrottledSession(limiter, retry=retry, headers=headers) as session:

        async def fetch_comments(issue: dict[str, Any]) -> None:
            url = URL(issue["comments_url"]).with_query(per_page=100)
            bodies = [each["body"] async for page in pages(session, url) for each in page]
            issues[str(issue["number"])]["comments"] = bodies

        query = {"state": "all", "per_page": "100", "sort": "updated", "direction": "asc"}
        if issues:
            query["since"] = max(issue["updated_at"] for issue in issues.values())
        url = (api / "repos" / repository / "issues").with_query(query)
        async with asyncio.TaskGroup() as group:  # comments are fetched while pages come
            async for page in pages(session, url):
                for issue in page:
                    fields = {name: issue[name] for name in ("title", "state", "updated_at")}
                    issues[str(issue["number"])] = fields | {"comments": []}
                    counts["changed"] += 1
                    if issue["comments"]:
                        group.create_task(fetch_comments(issue))
    return counts


def report(issues: Issues, counts: Counter[str]) -> None:
    """Print the result of a sync."""
    print(f"{len(issues)} issues, {counts['changed']} changed, {counts['Throttled']} throttled")


def run(repository: str, token: str) -> None:
    """Sync a repository with its file."""
    file = Path(repository.replace("/", "-") + ".json")
    issues: Issues = json.loads(file.read_text()) if file.exists() else {}
    report(issues, asyncio.run(sync(GITHUB, repository, issues, token)))
    file.write_text(json.dumps(issues, indent=1))


# ---- a fake GitHub ---------------------------------------------------------------------------

QUOTA, WINDOW = 30, 3  # requests, seconds
PER_PAGE, TOTAL = 100, 250


async def run_offline() -> None:
    """Sync twice with a fake GitHub, where nothing changes in between."""
    used: Counter[int] = Counter()

    async def github(request: web.Request) -> web.Response:
        window = int(time.time()) // WINDOW
        used[window] += 1
        headers = {
            "x-ratelimit-limit": str(QUOTA),
            "x-ratelimit-remaining": str(max(0, QUOTA - used[window])),
            "x-ratelimit-reset": str((window + 1) * WINDOW),
        }
        if used[window] > QUOTA:
            error = {"message": "API rate limit exceeded"}
            return web.json_response(error, status=403, headers=headers)
        if request.path.endswith("/comments"):
            return web.json_response([{"body": "I see this too."}], headers=headers)
        since = request.query.get("since", "")
        found = [each for each in map(fake_issue, range(TOTAL)) if each["updated_at"] >= since]
        for each in found:
            each["comments_url"] = str(request.url.origin() / f"issues/{each['number']}/comments")
        page = int(request.query.get("page", "1"))
        if page * PER_PAGE < len(found):
            following = request.url.update_query(page=page + 1)
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response(found[(page - 1) * PER_PAGE : page * PER_PAGE], headers=headers)

    issues: Issues = {}
    async with RateLimitedServer(handler=github) as server:
        for _ in range(2):
            report(issues, await sync(server.url, "you/yours", issues, "of no account"))
    print(f"{server.audit.sent} requests")


def fake_issue(number: int) -> dict[str, Any]:
    """Return an issue as GitHub does; each fifth has a comment."""
    updated_at = f"2026-01-{1 + number // 24:02}T{number % 24:02}:00:00Z"
    comments = int(number % 5 == 0)
    issue = {"number": number, "title": f"Issue {number}", "state": "open", "comments": comments}
    return issue | {"updated_at": updated_at}


def main() -> None:
    """Sync the repository of the command line, or a fake one."""
    parser = argparse.ArgumentParser(description="Sync the issues of a GitHub repository.")
    parser.add_argument("repository", nargs="?", help="such as aio-libs/yarl, of the real GitHub")
    options = parser.parse_args()
    if options.repository is None:
        asyncio.run(run_offline())
    elif token := os.environ.get("GITHUB_TOKEN"):
        run(options.repository, token)
    else:
        parser.error("set GITHUB_TOKEN to a token of your account")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
