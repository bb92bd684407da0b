"""LangChain, throttled: a rate limiter for its chat models.

Only asynchronous calls take tokens, since a limiter belongs to one event loop.
"""

# LangChain need not be installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false

from typing import TYPE_CHECKING, NoReturn

from aiothrottle._checks import shown
from aiothrottle.limiter import RateLimiter

if TYPE_CHECKING:
    from langchain_core.rate_limiters import BaseRateLimiter  # type: ignore[import-not-found, unused-ignore]

__all__ = ["langchain_rate_limiter"]


def langchain_rate_limiter(limiter: RateLimiter) -> "BaseRateLimiter":
    """Return a `BaseRateLimiter` of LangChain, for the `rate_limiter` of its chat models.

    Each call of a model takes one token. LangChain asks before the call, and does not report its
    end: so no concurrency limit can be kept, and a throttled response pauses nothing. Synchronous
    calls raise a `RuntimeError`.

    Args:
        limiter: The limiter, which may be shared. It has no concurrency limit.

    Raises:
        TypeError: `limiter` is not a `RateLimiter`.
        ValueError: `limiter` has a concurrency limit.
        ModuleNotFoundError: langchain-core is not installed.

    >>> from aiothrottle.integrations.langchain import langchain_rate_limiter
    >>> def make(model_class):
    ...     return model_class(rate_limiter=langchain_rate_limiter(RateLimiter("500/min")))
    """
    if not isinstance(limiter, RateLimiter):
        raise TypeError(f"limiter must be a RateLimiter, got {shown(limiter)}")
    if limiter.statistics().concurrency_limit is not None:
        raise ValueError(
            "LangChain does not report when a call ends, so no concurrency limit can be kept: "
            f"give a limiter without one, not {limiter!r}"
        )
    from langchain_core.rate_limiters import BaseRateLimiter  # need not be installed

    class Adapter(BaseRateLimiter):  # type: ignore[misc, unused-ignore]
        def acquire(self, *, blocking: bool = True) -> NoReturn:  # noqa: ARG002 - LangChain's
            raise RuntimeError(
                f"a synchronous call cannot wait for {limiter!r}, which belongs to an event loop: "
                "call ainvoke, astream or abatch"
            )

        async def aacquire(self, *, blocking: bool = True) -> bool:
            if blocking:
                async with limiter.throttle():
                    return True
            decision = await limiter.try_acquire()
            if decision.permit is not None:
                decision.permit.release()
            return decision.allowed

    return Adapter()
