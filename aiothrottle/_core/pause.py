"""The pause: an instant before which nothing is granted, and the request that then goes ahead.

Strategy. When a pause ends that the server has caused, all waiters would start at once, and most of
them would be throttled again. So one request goes ahead, the trial, and the others wait for it: the
limiter is closed until the trial is over. A trial that is cancelled leaves its role to another
request; one that hangs holds up nobody for longer than `LONGEST_TRIAL`.

Invariant: a pause is only ever extended, so no caller shortens the pause of another; at most one
request is the trial.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiothrottle.algorithms.protocol import until

if TYPE_CHECKING:
    from aiothrottle._core.wait_queue import Waiter

#: Seconds for which the others wait for the trial at the most. A server throttles sooner than that.
LONGEST_TRIAL = 5.0


@dataclass(slots=True, eq=False, repr=False)
class Pause:
    """The start and the end of the pause, by the bucket's clock, and the trial after it."""

    #: When `extend` was last called. A 429 of a request that started earlier makes no new pause.
    began_at: float = -math.inf
    #: The known end.
    ends_at: float = -math.inf
    #: Nothing is granted before: the end of the pause, and the longest end of the trial.
    opens_at: float = -math.inf
    #: Whether one request goes ahead of the others, or will when the pause ends.
    awaits_trial: bool = False
    #: The request that has gone ahead, or did last.
    trial: "Waiter | None" = None
    #: Whether a report about the trial will follow, so that its release does not end it.
    is_held: bool = False

    def extend(self, now: float, seconds: float) -> None:
        """Extend the pause to so many seconds from now; never shorten it."""
        self.began_at = now
        self.ends_at = max(self.ends_at, now + seconds)
        self.opens_at = max(self.opens_at, self.ends_at)

    def left(self, now: float) -> float:
        """Return the seconds until the pause ends; 0.0 without a pause."""
        return until(self.ends_at, now)

    def closed_for(self, now: float) -> float:
        """Return the seconds until something may be granted, if the trial is not over earlier."""
        return until(self.opens_at, now)

    def shift(self, seconds: float) -> None:
        """Move to another clock, which is ahead by so many seconds."""
        self.began_at += seconds
        self.ends_at += seconds
        self.opens_at += seconds

    # ---- the trial -------------------------------------------------------------------------------

    def await_trial(self) -> None:
        """Let one request go ahead when the pause ends, also if another has gone ahead already."""
        self.awaits_trial, self.is_held = True, False
        self.trial = None
        self.opens_at = self.ends_at

    def start(self, waiter: "Waiter", now: float) -> None:
        """Note the start of a request while a trial is awaited."""
        if self.trial is None:
            self.trial = waiter
            self.opens_at = now + LONGEST_TRIAL
        else:  # it takes too long: the others do not wait for it any more
            self.trial = None
            self.end_trial()

    def is_trial(self, waiter: "Waiter | None") -> bool:
        """Return whether the others wait for this request."""
        return self.awaits_trial and waiter is not None and waiter is self.trial

    def pass_on(self, waiter: "Waiter | None") -> bool:
        """Let another request go ahead in place of this one. Returns whether it was the trial."""
        if not self.is_trial(waiter):
            return False
        self.await_trial()
        return True

    def hold_trial(self, waiter: "Waiter | None", now: float) -> None:
        """Wait on for the outcome of the trial, although its permit is or will be released."""
        if waiter is not None and waiter is self.trial:
            self.awaits_trial = self.is_held = True
            self.opens_at = max(self.ends_at, now + LONGEST_TRIAL)

    def end_trial(self) -> None:
        """Let all go on when the pause ends."""
        self.awaits_trial = False
        self.opens_at = self.ends_at
