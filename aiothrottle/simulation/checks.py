"""What the numbers and words that are asked of a simulation have to be."""

import math

__all__ = ["check_choice", "check_number"]


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")


def check_number(name: str, value: float, *, at_least: float | None = None) -> None:
    """Refuse what is not finite, or below the least; where there is none, what is not above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not (math.isfinite(value) and (value > 0 if at_least is None else value >= at_least)):
        least = "above 0" if at_least is None else f"{at_least:g} or more"
        raise ValueError(f"{name} is {least} and finite, not {value!r}")
