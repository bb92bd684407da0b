"""The learned slots: how many requests a server works on at once, if it throttles all beyond.

When such a server throttles, it goes on with those in flight that it has not throttled: so many
fit. With as many slots it throttles nothing, however fast they are used. One more is tried now and
then, each time much later when the try has failed. The server may be done with some of those in
flight, and their answers on the way: the number is corrected once. A server that throttles although
no more were in flight limits something else, such as a rate.

Invariant: the slots shrink only after an event, which is a 429 and all those of requests that were
sent before it arrived, and only to the number that was in flight then and was not throttled.
"""

import math
from dataclasses import dataclass

# Requests after which one more slot is tried, and the factor by which a failed try delays the next.
_TRY_AFTER, _LATER = 10, 8
# A server that works on one request at a time looks like one that wants them evenly spaced.
_LEAST = 2
# How often the number may turn out to be too great.
_CORRECTIONS = 1


@dataclass(slots=True)
class LearnedSlots:
    """The number of slots that the 429s of a server leave.

    Args:
        most: The slots that the user allows; infinite: any number.

    >>> slots = LearnedSlots(most=8.0)
    >>> for _ in range(3):  # of five in flight, at the same time
    ...     slots.throttled(now=1.0, sent_at=0.9, in_flight=5)
    >>> slots.succeeded(sent_at=2.0)
    >>> slots.size
    2.0
    """

    most: float
    #: The slots; infinite: as many as the user allows.
    size: float = math.inf
    # The last event: when it began, the requests in flight then, and its 429s.
    _since: float = -math.inf
    _in_flight: int = 0
    _number: int = 0
    # The slots without the one that is tried; zero: not known.
    _fit: int = 0
    # Requests that were admitted since the event or the last try, and after how many one is tried.
    _admitted: int = 0
    _try_after: int = _TRY_AFTER
    # How often the server has throttled although no more were in flight.
    _refuted: int = 0

    @property
    def explain_429s(self) -> bool:
        """Whether the slots were known at the last event, and may be the reason of its 429s."""
        return self._fit > 0 and self._in_flight - self._number >= _LEAST

    def succeeded(self, sent_at: float) -> None:
        """Record a request that was not throttled.

        Args:
            sent_at: When it was sent.
        """
        if sent_at <= self._since or self._refuted > _CORRECTIONS:
            return
        if self._number:
            self._end_event()
        self._admitted += 1
        if self._admitted >= self._try_after and self.size < math.inf:
            self._fit, self._admitted = int(self.size), 0
            self.size = self.size + 1.0 if self.size + 1.0 < self.most else math.inf

    def throttled(self, now: float, sent_at: float, in_flight: int) -> None:
        """Record a 429.

        Args:
            now: When it arrived.
            sent_at: When its request was sent.
            in_flight: Requests in flight, including this one.
        """
        if sent_at <= self._since:
            self._number += 1
            return
        if self.size > self._fit > 0:
            self._try_after *= _LATER
        self._since, self._in_flight, self._number, self._admitted = now, in_flight, 1, 0

    def _end_event(self) -> None:
        fit, self._number = self._in_flight - self._number, 0
        self._refuted += fit < self._fit
        is_known = _LEAST <= fit < self.most and self._refuted <= _CORRECTIONS
        self._fit = fit if is_known else 0
        self.size = float(self._fit or math.inf)
