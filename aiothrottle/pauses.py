"""Pauses: a bucket that grants nothing for a while, as it was asked to or the server has refused.

What else comes of how requests end is in `feedback`.
"""

import logging
from typing import TYPE_CHECKING

from aiothrottle import events
from aiothrottle.algorithms.algorithm import until
from aiothrottle.bucket import Bucket
from aiothrottle.feedback import Feedback

if TYPE_CHECKING:
    from aiothrottle.permit import Permit

__all__ = ["Pauses"]

_logger = logging.getLogger("aiothrottle")

# Seconds. Of the many requests that one refusal concerns each may ask for a little more.
_LONGER = 1.0


class Pauses(Bucket):
    """A bucket that can be paused."""

    __slots__ = ()

    # The bucket's, which are moved here too: see `Line`.
    feedback: Feedback | None
    paused_at: float
    paused_until: float
    room: int

    def pause(self, seconds: float, reason: events.Reason = "asked") -> None:
        """Grant nothing for so long from now; a pause under way is never shortened."""
        before, now = self.paused_until, self.clock()
        self.paused_at = now
        self.paused_until = max(before, now + seconds)
        self.room = 0
        self.epoch += 1
        self.wake()
        if self.paused_until > now and (before <= now or self.paused_until - before >= _LONGER):
            seconds = self.paused_until - now
            who = self.algorithm if self.key is None else self.key
            # A key may come from a stranger: escaped and cut, it forges no line and fills no disk.
            _logger.info("%.200r is paused for %.3g s: %s", who, seconds, events.REASONS[reason])
            if self.listeners:
                self.tell(events.Paused(self.key, seconds, reason))

    def succeeded(self, permit: "Permit", now: float, age: float) -> None:
        """Hear of a request that went so many seconds ago and was not refused."""
        feedback = self.feedback
        if feedback is not None:
            feedback.succeeded(self, permit, now, now - age)
            if feedback.guard is None and not feedback.is_needed:
                self.feedback = None

    def refused_by_server(
        self, permit: "Permit", seconds: float | None, *, told: bool, spread: float, longest: float
    ) -> bool:
        """Pause, as the server has refused the permit's request, and hear of it.

        Many that are under way are refused at once. The first of them makes the pause; the others
        make it longer only if the server has told them so. Gives whether there is a pause of so
        many `seconds` now.
        """
        feedback = self.feedback = self.feedback or Feedback()
        if self.listeners:
            self.tell(events.ServerRefused(self.key, seconds if told else None))
        reason: events.Reason = "told" if told else "refused"
        paused = True
        if not permit.paused_since:
            self.pause(feedback.pause(seconds, spread=spread, longest=longest), reason)
        elif told and seconds is not None:
            self.pause(min(seconds, longest), reason)
        else:
            paused = False
        now = self.clock()
        self.hear_refusal(now - permit._at, until(self.paused_until, now))
        return paused

    def hear_refusal(self, age: float, pause: float) -> None:
        """Hear of a request that went so many seconds ago, and was refused for so many."""
        if self.feedback is not None:
            now = self.clock()
            self.feedback.refused(self, now, now - age, pause)
