"""A live page of limiters, in the browser: served by the program itself, on loopback.

>>> import asyncio
>>> from aiothrottle import RateLimiter
>>> async def main():
...     limiter = RateLimiter("10/s", concurrency_limit=5)
...     async with serve(limiter) as url:
...         print(f"see {url}")
...         ...  # the work
"""

from aiothrottle.dashboard.server import serve

__all__ = ["serve"]
