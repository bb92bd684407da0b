"""Reading dumps: bytes that no algorithm has written are rejected, never guessed at."""

import math
import struct
from typing import Any

__all__ = ["LATEST", "check_dumped", "unpack"]

LATEST = 1e10
"""Seconds: three hundred years. Beyond it a double has no small fractions of a second, and beyond
1e16 no single seconds: where time stands still, nothing is ever spent."""

# Beyond 2 to the 53rd a float cannot tell a whole number from the next.
_MOST = 2.0**53


def unpack(layout: struct.Struct, kind: int, data: bytes, algorithm: str) -> tuple[Any, ...]:
    """Return the numbers of a dump, without its first byte.

    Raises:
        ValueError: The first byte is not `kind`, or the length is not that of the layout.
    """
    if not data or data[0] != kind:
        begin = f"begin with {data[0]:#04x}, not {kind:#04x}" if data else "are empty"
        raise ValueError(f"not a dump of {algorithm}: the bytes {begin}")
    if len(data) != layout.size:
        raise ValueError(f"not a dump of {algorithm}: {len(data)} bytes instead of {layout.size}")
    return layout.unpack(data)[1:]


def check_dumped(
    number: float,
    algorithm: str,
    *,
    least: float = -math.inf,
    fresh: bool = False,
    whole: bool = False,
) -> None:
    """Check a number of a dump.

    Args:
        number: The number.
        algorithm: What the dump is of, for the message.
        least: The least that it can be.
        fresh: Whether it is of a time, so minus infinity in an unused state.
        whole: Whether it has to be a whole number.

    Raises:
        ValueError: No state holds that number: NaN, infinity and so on.
    """
    if fresh and number == -math.inf:
        return
    if (
        not (least <= number and abs(number) < _MOST)
        or (fresh and not whole and abs(number) > LATEST)
        or (whole and not number.is_integer())
    ):
        raise ValueError(f"not a dump of {algorithm}: it cannot contain {number!r}")
