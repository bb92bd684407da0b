"""The lower bounds given to users are those that the tests run with: see `.ci/run`."""

import tomllib
from pathlib import Path
from typing import Any

PROJECT: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
)


def bounds(requirements: list[str]) -> dict[str, str]:
    """Return the lower bound of each package, without its markers."""
    parted = (requirement.partition(";")[0].partition(">=") for requirement in requirements)
    return {name: bound for name, _, bound in parted}


def test_group_test_has_the_bounds_of_the_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    group = bounds(PROJECT["dependency-groups"]["test"])
    # The SDK, which the tests need, brings the API of its own version.
    group["opentelemetry-api"] = group["opentelemetry-sdk"]
    # The extra is installed as it is.
    group |= bounds(extras["plot"])
    given = bounds([each for requirements in extras.values() for each in requirements])
    assert all(given.values())
    assert given == {name: group[name] for name in given}
