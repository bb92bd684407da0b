"""The APIs whose requests `fetch` can charge and settle by their tokens: ``--profile openai``.

A profile holds for all hosts of a run: many servers have the API of another.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from aiothrottle import llm
from aiothrottle._http.options import Options
from aiothrottle.headers import PROFILES as VENDORS
from aiothrottle.headers import Profile
from aiothrottle.retry import Retry

__all__ = ["PROFILES", "options_of"]

_OUTPUT = 1000


class _Profile(NamedTuple):
    #: How the headers are parsed.
    headers: Profile
    options: Callable[..., llm.LLMOptions]
    #: The resources in which requests are charged: that of the input, and that of the output.
    resources: tuple[str, ...]


PROFILES: Mapping[str, _Profile] = {
    "openai": _Profile(VENDORS["OpenAI"], llm.openai, ("tokens",)),
    "anthropic": _Profile(VENDORS["Anthropic"], llm.anthropic, ("input_tokens", "output_tokens")),
}


def options_of(name: str, limits: Mapping[str, float], retry: Retry) -> Options:
    """Return the options of an integration for a profile.

    Args:
        name: The profile.
        limits: The least limit of each resource: no request is charged more before its response.
        retry: Its attempts and waits are kept; what is retried is up to the profile.

    Raises:
        ValueError: A resource of the profile has no limit.
    """
    headers, make, resources = PROFILES[name]
    if not limits.keys() >= {*resources}:
        wanted = " ".join(f"--rate {resource}=200000/min" for resource in resources)
        raise ValueError(
            f"--profile {name} charges {' and '.join(resources)}: give their limits, such as "
            f"--rate requests=500/min {wanted}"
        )
    most = [max(1, int(limits[resource])) for resource in resources]
    own = make(most_tokens=most[0], default_output=min(_OUTPUT, most[-1]))
    return Options(
        cost=own["cost"],
        settle=own["settle"],
        retry=replace(own["retry"], attempts=retry.attempts, max_retry_after=retry.max_retry_after),
        profiles=[replace(headers, hosts=("*",))],
    )
