"""Many calls of a model at once, and what became of them; shared with the benchmark."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


def prompt_of(number: int) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "Answer as briefly as the question allows."},
        {"role": "user", "content": f"Question {number}. " + "and another word " * (number % 40)},
    ]


async def outcomes(
    call: Callable[[int], Awaitable[object]], count: int
) -> tuple[int, list[BaseException]]:
    """Start so many calls at once; return how many succeeded, and the errors of the others."""
    done = await asyncio.gather(*map(call, range(count)), return_exceptions=True)
    errors = [each for each in done if isinstance(each, BaseException)]
    return count - len(errors), errors
