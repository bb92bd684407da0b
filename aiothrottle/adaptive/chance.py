"""Chance: 429s that come at random, whatever the limiter does, and from which it learns nothing.

A limit is exceeded less often when requests are better spaced. So the requests between throttled
ones are counted. If there are not many more of them after several cuts of the burst, the cuts were
in vain. If there are far fewer when the burst is back, they were not. A limit admits about as many
again and again, which chance does not.

Invariant: nothing is taken for chance before `_EVENTS` events, and twice as many after a mistake.
"""

from dataclasses import dataclass

# Events that are compared. The requests between them: more than a burst that is too large would
# leave, and fewer than are worth a thought.
_EVENTS, _LEAST, _MOST = 6, 13, 200
# By chance the longest of these is longer by this factor than the shortest: a limit admits about
# the same number again and again.
_UNEVEN = 2
# With fewer cuts there are so many times as many requests, if they help; and so many of those with
# the cuts are left without them, in so many events.
_MORE, _LEFT, _TRIED = 3, 0.4, 3


@dataclass(slots=True)
class Chance:
    """The events of a limiter that keeps to its limit.

    >>> chance = Chance()
    >>> [chance.throttled(sent, burst=10.0) for sent in (60, 80, 150, 190, 260, 290)]
    [False, False, False, False, False, True]
    >>> chance.burst
    10.0
    """

    #: Whether the 429s come by chance.
    is_found: bool = False
    #: The burst before the first of these events.
    burst: float = 0.0
    # The requests between the last events, and those before the last one.
    _gaps: tuple[int, ...] = ()
    _sent: int = 0
    # How many there were between events with the smaller burst.
    _usual: float = 0.0
    _needed: int = _EVENTS

    def throttled(self, sent: int, burst: float) -> bool:
        """Record an event: a 429, and all those of requests that were sent before it arrived.

        Args:
            sent: The requests that were sent so far.
            burst: The burst, in tokens.

        Returns:
            Whether it is by chance.
        """
        gap, self._sent = sent - self._sent, sent
        if not self._gaps and not self.is_found:
            self.burst = burst
        self._gaps = (*self._gaps[1 - self._needed :], gap)
        number, total = len(self._gaps), sum(self._gaps)
        if self.is_found:
            if number >= _TRIED and total < _LEFT * number * self._usual:
                self.is_found, self._gaps = False, ()
                self._needed *= 2
        elif number == self._needed and self._is_alike(self._gaps[1:]):
            self.is_found, self._gaps = True, ()
            self._usual = total / number
        return self.is_found

    @staticmethod
    def _is_alike(gaps: tuple[int, ...]) -> bool:
        """Return whether the cuts have made no difference."""
        half = len(gaps) // 2
        least, *_, most = ordered = sorted(gaps)
        median = ordered[half]
        if most < _UNEVEN * least:
            return False
        return _LEAST <= median <= _MOST and sum(gaps[half:]) < _MORE * sum(gaps[:half])
