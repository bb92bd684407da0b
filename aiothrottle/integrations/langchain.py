"""LangChain, throttled: a rate limiter for its chat models.

Its tokens are taken by asynchronous calls only: a limiter belongs to one event loop.
"""

# LangChain is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false

from typing import NoReturn

try:
    from langchain_core.rate_limiters import (  # type: ignore[import-not-found, unused-ignore]
        BaseRateLimiter,
    )
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "langchain-core is not there: pip install langchain-core", name="langchain_core"
    ) from _error

from aiothrottle.limiter import RateLimiter
from aiothrottle.redact import shown

__all__ = ["LangChainRateLimiter"]


class LangChainRateLimiter(BaseRateLimiter):  # type: ignore[misc, unused-ignore]
    """Limits the rate at which a chat model of LangChain is called, `rate_limiter=`.

    LangChain asks for permission before a call, and does not report its end. So there is no
    concurrency limit, a throttled response pauses nothing, and each call costs 1.

    Args:
        limiter: The limiter, which may be shared. It has no concurrency limit.

    Raises:
        TypeError: `limiter` is not a `RateLimiter`.
        ValueError: `limiter` has a concurrency limit.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        if not isinstance(limiter, RateLimiter):
            raise TypeError(f"limiter must be a RateLimiter, got {shown(limiter)}")
        if limiter.statistics().concurrency_limit is not None:
            raise ValueError(
                "LangChain does not report when a call ends, so a concurrency limit cannot be "
                f"kept; give a limiter without one, got {limiter!r}"
            )
        self._limiter = limiter

    @property
    def limiter(self) -> RateLimiter:
        """The limiter."""
        return self._limiter

    def acquire(self, *, blocking: bool = True) -> NoReturn:  # noqa: ARG002 - LangChain's name
        """Raise an error: synchronous calls are not supported.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "a synchronous call cannot wait for a limiter, which belongs to an event loop: call "
            "ainvoke, astream or abatch"
        )

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Take a token.

        Args:
            blocking: Whether to wait for it.

        Returns:
            Whether a token was taken; with `blocking` always True.

        Raises:
            LimiterClosed: The limiter is closed.
            QueueFull: Its `max_queue` requests wait already.
        """
        if blocking:
            async with self._limiter.throttle():
                return True
        decision = await self._limiter.try_acquire()
        if decision.permit is not None:
            decision.permit.release()
        return decision.allowed

    def __repr__(self) -> str:
        return f"<LangChainRateLimiter {self._limiter!r}>"
