"""How long to pause before a compare and swap, by how many of them were lost lately.

Strategy. Of the processes that load a record together one swaps it, and the attempts of the others
were in vain. So each lost swap makes the pause of the next attempts longer, by about the duration
of an attempt; and it fades with time. A process that wins pauses as well, as it has lost swaps too:
where only losers paused, one process would be served and the others hardly ever.

Invariant: a key without a lost swap in the last while has no pause and is not remembered.
"""

import random
from dataclasses import dataclass

from aiothrottle.stores.store import Key

__all__ = ["Contention"]

# A lost swap counts half after so many attempts.
_HALF_LIFE = 16
# Fewer lost swaps are as good as none.
_FEWEST = 0.1
# Of the pause, with each swap that one call loses: of hundreds of processes none loses for ever.
_GROWTH = 1.2
# Seconds of a pause, at the most.
_LONGEST = 0.5
# Keys that are remembered, at the most.
_MOST_KEYS = 4096
# Of the last attempt, in the average of their durations.
_WEIGHT = 0.25


@dataclass(slots=True)
class _Lost:
    """The lost swaps of one key: how many count at the timestamp, and the seconds of an attempt."""

    at: float
    count: float
    seconds: float

    def fade(self, now: float) -> None:
        if now > self.at:
            self.count *= 0.5 ** ((now - self.at) / (_HALF_LIFE * self.seconds))
        self.at = now


class Contention:
    """The lost swaps of the keys of one store.

    >>> contention = Contention()
    >>> contention.longest_pause("key", now=0.0)
    0.0
    >>> for _ in range(8):
    ...     contention.note("key", now=0.0, seconds=0.01, lost=True)
    >>> contention.longest_pause("key", now=0.0), contention.longest_pause("key", now=0.16)
    (0.08, 0.04)
    >>> contention.longest_pause("key", now=10.0), len(contention)
    (0.0, 0)
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[Key, _Lost] = {}

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._keys)

    def pause(self, key: Key, now: float, lost: int = 0) -> float:
        """Return the seconds before the next attempt, by chance: the others pause as long.

        Args:
            key: The key of the record.
            now: The time, in seconds.
            lost: How many swaps this call has lost.
        """
        return random.uniform(0.0, self.longest_pause(key, now, lost))

    def longest_pause(self, key: Key, now: float, lost: int = 0) -> float:
        """Return the most seconds that `pause` returns."""
        known = self._keys.get(key)
        if known is None:
            return 0.0
        known.fade(now)
        if known.count < _FEWEST:
            del self._keys[key]
            return 0.0
        return min(known.count * _GROWTH**lost * known.seconds, _LONGEST)

    def note(self, key: Key, now: float, seconds: float, *, lost: bool) -> None:
        """Record an attempt.

        Args:
            key: The key of the record.
            now: The time, in seconds.
            seconds: From the begin of the load to the end of the swap.
            lost: Whether another process was faster.
        """
        known = self._keys.get(key)
        if known is None:
            if not lost or not seconds:
                return
            if len(self._keys) >= _MOST_KEYS:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = known = _Lost(now, 0.0, seconds)
        known.fade(now)
        if seconds:
            known.seconds += _WEIGHT * (seconds - known.seconds)
        if lost:
            known.count += 1.0
