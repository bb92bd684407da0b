"""The evidence of an unknown limit: what the 429s of a server tell of its rate, or of its slots.

An event is a 429 and all those of requests that were sent before it arrived. The first event says
little: it may be due to a burst, or to other clients. The next one, after the pause, says that the
server admits so many tokens in the time of a pause and of the requests after it. That average is
the rate at which an `AdaptiveRate` begins to search. If nothing was admitted in between, the server
is still closed, and that says nothing. When nothing was throttled for long, the rate is given up;
the next event brings it back.

Where the server reports a quota, and others use it too, the next 429 is enough, and no chance.

A known rate may be too high as well: other clients share the limit, or it was lowered. Then the
search does not go beyond it, and ends when the known rate has proved to be right.

Some servers answer some requests with a 429 by chance, whatever the rate. A limit shows itself: it
throttles many of the requests in flight, or it admits the same tokens again and again. Without such
a sign there is no rate. With one, the search closes in on the limit, and is throttled near it. If
that happens again and again far below what was admitted on average before, it was chance after all;
but a server that stays closed after its 429s has a limit, which others use too. Where 429s come by
chance, they are no reason for a pause: the request waits alone. If then a fifth of the requests is
throttled, and clearly more than before, there seems to be a limit after all. Each time that takes
more 429s.

Some servers limit the requests that they work on at once instead: those are the learned slots.

Answers may take long, of a language model for instance, but a server throttles at once. So a
request that has been in flight for longer than a 429 takes counts as admitted.

Invariant: while the server throttles nothing there is neither evidence nor a rate. The slots shrink
only after an event, and only to the number that was in flight then and was not throttled.
"""

import math
from dataclasses import dataclass, field

from aiothrottle.adaptive.rate import LONG_CLOSED, AdaptiveRate, RateState

# ---- slots ---------------------------------------------------------------------------------------

# When a server throttles all requests beyond a number at once, it goes on with those in flight that
# it has not throttled: so many fit. With as many slots it throttles nothing, however fast they are
# used. One more is tried now and then, each time much later when the try has failed. The server may
# be done with some of those in flight, and their answers on the way: the number is corrected once.
# A server that throttles although no more were in flight limits something else, such as a rate.

# Requests after which one more slot is tried, and the factor by which a failed try delays the next.
_TRY_AFTER, _LATER = 10, 8
# A server that works on one request at a time looks like one that wants them evenly spaced.
_LEAST = 2
# How often the number may turn out to be too great. One of so many does not count: a few more seem
# to fit while answers are on the way.
_CORRECTIONS, _MANY = 1, 7


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
        if self._number:
            self._end_event()  # answers that take long come later than the next 429
        if self.size > self._fit > 0:
            self._try_after *= _LATER
        self._since, self._in_flight, self._number, self._admitted = now, in_flight, 1, 0

    def _end_event(self) -> None:
        fit, self._number = self._in_flight - self._number, 0
        self._refuted += fit < self._fit - self._fit // _MANY
        is_known = _LEAST <= fit < self.most and self._refuted <= _CORRECTIONS
        self._fit = fit if is_known else 0
        self.size = float(self._fit or math.inf)


# ---- the rate ------------------------------------------------------------------------------------

# The bounds of the search, in tokens per second: a token a day, and more than anyone sends.
_SLOWEST, _FASTEST = 1 / 86400, 1e6
# An event tells something about the next one for so many seconds, or so many times as long as the
# server was closed after it: some count over an hour. The rate is kept for as long without one; or
# for so many times the scale of its search, so that it has grown well beyond the limit by then.
_MEMORY, _CLOSINGS, _SCALES = 600.0, 3.0, 4.0
# The least part of a limit that others use too with which a client begins: so their parts are more
# even than the averages of their first seconds. And the least seconds of an average.
_SHARE, _AVERAGE = 0.25, 1.0
# The same near the fastest rate, if that is the one that the user gave: it was right after all.
_RIGHT, _NEARLY = 30.0, 0.98
# Seconds, or intervals of the rate, of which an idle time counts no more: it tells nothing.
_IDLE, _INTERVALS = 60.0, 2.0
# A limit throttles that part of the requests in flight, and so many at the least: of few in flight,
# or with a given rate, and of more without one, of which a second may be throttled by chance.
_PART, _LEAST_OF_FEW, _LEAST_OF_MANY = 1 / 3, 2.0, 3.0
# A request in flight was admitted, although it takes long, if it was sent so many seconds ago, or
# twice as long as the 429 took: a server throttles at once.
_DECIDED = 0.25
# So many trials in a row that are throttled are a sign.
_TRIALS = 2
# Numbers of tokens that differ by no more than this factor are the same. If they are the same so
# many times in a row, that is a sign.
_SAME, _IN_A_ROW = 0.8, 3
# So many events are chance if each has throttled that part of the requests in flight, or one, after
# other numbers of tokens. With fewer in flight an event counts half. One with more 429s outweighs
# so many of them; where that many are left, a limit takes one more sign.
_BY_CHANCE, _FEW, _IN_FLIGHT = 4.0, 1 / 4, 4
_OUTWEIGHS, _LEFT = 2.0, 1.0
# From then on so many 429s for each admitted token, a fifth of the requests, may be chance; or so
# many times those that there were before, when each of them made the limiter pause, but no more
# than that. So many more are a limit after all. With fewer, one in ten by chance would look like a
# limit too soon.
_CHANCE, _THAN_BEFORE, _MOST_CHANCE, _TOO_MANY = 0.25, 1.5, 0.75, 10.0
# Tokens after which those before count half.
_LATELY = 100.0
# A limit does not throttle rates far below the best average of the search, of so many tokens or
# more. So each event counts by how many octaves its rate lies below that, one at the most. If the
# server is still closed, that counts one less: it does throttle. With so many in all it is chance;
# with as many more each time that there were signs of a limit again. After that many tokens before
# an event it is a limit: a probe has found it.
_ENOUGH, _MOST_OCTAVES, _PLENTY = 10.0, 5.0, 80.0


def decided_by(now: float, age: float) -> float:
    """Return by when a request was sent that the server has surely decided about.

    Args:
        now: When a 429 arrived.
        age: Seconds since its request was sent.
    """
    return now - max(_DECIDED, 2.0 * age)


@dataclass(slots=True)
class Evidence:
    """What the server has admitted and throttled since its first 429.

    >>> evidence = Evidence()
    >>> evidence.throttled(0.1, sent_at=0.0, pause=1.0, in_flight=2, sent=22, undecided=2)
    >>> for _ in range(20):
    ...     evidence.succeeded(sent_at=1.1, cost=1.0)
    >>> evidence.throttled(1.12, sent_at=1.11, pause=0.98, in_flight=2, sent=44, undecided=2)
    >>> evidence.throttled(1.13, 1.115, 0.97, in_flight=1, sent=44, undecided=2).initial
    10.0
    """

    #: The fastest rate, in tokens per second: the one that the user gave, if any.
    fastest: float = _FASTEST
    #: When the last event began, the 429s of the last one before which something was admitted, and
    #: how many are a sign of a limit.
    since: float = -math.inf
    number: int = 0
    many: float = math.inf
    #: Seconds without a 429 since, while a rate is known, and when the last answer came.
    quiet_for: float = 0.0
    seen_at: float = -math.inf
    #: When the server closed: the event before which it had admitted tokens last.
    closed_at: float = -math.inf
    #: Until when it certainly admitted nothing, and for how long that was before the last event.
    closed_until: float = -math.inf
    closed_for: float = 0.0
    #: Requests that were sent by the last event, and the events in a row with nothing admitted.
    sent: int = 0
    closed: int = 0
    #: Tokens that were admitted since, and those before that event, since the one before it.
    admitted: float = 0.0
    before: float = 0.0
    #: The rate at which a search begins, in tokens per second; infinite: not known.
    rate: float = math.inf
    #: Whether the last event had a sign; how many events before it, in a row; how many it takes.
    has_sign: bool = False
    signs: int = 0
    needed: int = 1
    #: How often in a row the same number of tokens was admitted.
    same: int = 0
    #: The requests in flight at the last event, how many events in a row look like chance, and the
    #: 429s beyond those that chance explains.
    in_flight: int = 0
    by_chance: float = 0.0
    excess: float = 0.0
    #: The tokens and the 429s of the last events that were not taken for chance.
    admitted_lately: float = 0.0
    throttled_lately: float = 0.0
    #: The best average of the search, in tokens per second, and by how many octaves in all the
    #: throttled rates were below it.
    best: float = 0.0
    octaves: float = 0.0
    #: How often those were too many: each time it takes more of them to doubt chance.
    doubts: int = 0
    #: What it admits at once, where it limits that instead.
    slots: LearnedSlots = field(default_factory=lambda: LearnedSlots(math.inf))

    @property
    def is_by_chance(self) -> bool:
        """Whether 429s are taken for chance."""
        return self.by_chance >= _BY_CHANCE

    @property
    def _chance(self) -> float:
        """The 429s for each admitted token that chance explains."""
        before = self.throttled_lately / max(1.0, self.admitted_lately)
        return min(max(_CHANCE, _THAN_BEFORE * before), _MOST_CHANCE)

    @property
    def is_near(self) -> bool:
        """Whether the limit is near: the server has admitted no more than before the last event."""
        return self.has_sign and self.admitted <= self.before

    def waits_alone(self, *, is_chance: bool) -> bool:
        """Record a 429, while there is no rate; return whether it is no reason for a pause.

        Args:
            is_chance: Whether smaller bursts have made 429s no rarer.
        """
        if not self.is_by_chance and (not is_chance or self.doubts):
            return False
        self.excess += 1.0
        if self.excess <= _TOO_MANY * (1 + self.doubts):
            return True
        # That was chance too, perhaps: the next event has to show whether there is a limit.
        self.doubts += 1
        self.by_chance = self.excess = 0.0
        self.has_sign, self.many = False, math.inf
        return False

    def succeeded(self, sent_at: float, cost: float) -> None:
        """Record a request that was not throttled.

        Args:
            sent_at: When it was sent.
            cost: Its tokens.
        """
        if sent_at > self.closed_at:  # maybe before the last 429, which arrived sooner
            self.admitted += cost
        if self.excess:
            self.excess = max(0.0, self.excess - self._chance * cost)
        if sent_at > self.since:
            self.slots.succeeded(sent_at)

    def throttled(
        self,
        now: float,
        sent_at: float,
        pause: float,
        in_flight: int,
        sent: int,
        undecided: int,
        of_all: float = 0.0,
    ) -> AdaptiveRate | None:
        """Record a 429, while there is no rate.

        Args:
            now: When it arrived.
            sent_at: When its request was sent.
            pause: Seconds from `now` on in which nothing will be sent.
            in_flight: Requests in flight, including this one.
            sent: Requests that were sent so far, including those.
            undecided: Those of them that were sent a short time ago: see `decided_by`.
            of_all: Tokens per second for all clients, if others are known to use them; else 0.0.

        Returns:
            The search for the rate, if there is enough evidence for one.
        """
        self.slots.throttled(now, sent_at, in_flight)
        self.throttled_lately += not self.is_by_chance
        if self.since > -math.inf:
            in_flight = min(in_flight, undecided)
        if sent_at > self.since:
            self.admitted = max(self.admitted, sent - self.sent - in_flight)
            self.sent = sent
            if self.admitted:  # else the server is still closed
                seconds = now - self.closed_at
                closed_for = self.closed_until - self.closed_at
                if seconds <= _MEMORY or seconds <= _CLOSINGS * closed_for:
                    self.closed_for = closed_for
                    was_long = self.closed_for >= LONG_CLOSED
                    # A counter that reopens by and by, after a long time, admits a few at first.
                    if not was_long or self.admitted >= 0.5 * self.before:
                        self.rate = self.admitted / (seconds if was_long else seconds + pause)
                self.closed_until = now + pause
                self.signs = self.signs + 1 if self.has_sign else 0
                self.has_sign, self.closed = False, 0
            elif self.since > -math.inf:
                self.closed += 1
            self.closed_until = max(self.closed_until, now)
            number = self.number if self.admitted else 0
            self._begin(now, in_flight)
            if number and not self.is_by_chance:
                self._weigh(number)
            is_unsure = in_flight >= _IN_FLIGHT and self.fastest == _FASTEST
            least = _LEAST_OF_MANY if is_unsure else _LEAST_OF_FEW
            self.in_flight, self.many = in_flight, max(least, _PART * in_flight)
            self.has_sign |= self.same >= _IN_A_ROW or self.closed >= _TRIALS
        else:
            self.number += 1
            self.has_sign = self.has_sign or self.number >= self.many
        is_explained = self.slots.explain_429s or self.is_by_chance
        needed = self.needed + (self.by_chance >= _LEFT)
        is_limit = self.signs + self.has_sign >= needed and not is_explained
        return self._search(of_all) if of_all or (is_limit and self.rate < math.inf) else None

    def share(self, now: float, of_all: float) -> AdaptiveRate | None:
        """Return the search for a rate where others use the limit too, without a second 429.

        A client that is ahead of the others may never get one, while it throttles them.

        Args:
            now: The time.
            of_all: Tokens per second for all clients.
        """
        seconds = now - self.closed_at
        is_given = self.fastest < _FASTEST
        if is_given or not (_AVERAGE <= seconds <= _MEMORY and self.admitted):
            return None
        self.rate, self.closed_for = self.admitted / seconds, 0.0
        return self._search(of_all)

    def _search(self, of_all: float) -> AdaptiveRate:
        """Return the search from the known average on, or from a part of the rate for all."""
        self.slots, self.by_chance = LearnedSlots(self.slots.most), 0.0
        self.best = self.octaves = 0.0
        slowest = min(_SLOWEST, self.fastest)
        average = self.rate if self.rate < math.inf else 0.0
        initial = min(max(average, _SHARE * of_all, slowest), self.fastest)
        return AdaptiveRate(initial, slowest, self.fastest)

    def is_chance(self, now: float, sent_at: float, rate: float, of_all: float = 0.0) -> bool:
        """Record a 429 of the search; return whether the rate is to be given up.

        Args:
            now: When it arrived.
            sent_at: When its request was sent.
            rate: The rate of the search, in tokens per second.
            of_all: Tokens per second for all clients, if others use them: these take what this
                one does not get, and that is no chance.
        """
        self.throttled_lately += 1.0
        if sent_at <= self.since:
            return False
        average = self.admitted / (now - self.closed_at)
        if not self.admitted:
            self.octaves = max(0.0, self.octaves - 1.0)
        elif self.admitted >= _PLENTY:
            self.best, self.octaves = average, 0.0
        elif not of_all:
            if self.admitted >= _ENOUGH:
                self.best = max(self.best, average)
            self.octaves += min(1.0, math.log2(max(self.best, rate) / rate))
        self._begin(now)
        if self.octaves <= _MOST_OCTAVES * max(1, self.needed):
            return False
        self.rate, self.signs, self.has_sign = math.inf, 0, False
        self.by_chance = _BY_CHANCE
        self.needed += 1
        return True

    def kept_for(self, search: RateState) -> float:
        """Return for how many seconds without a 429 a rate is kept."""
        return max(_MEMORY, _CLOSINGS * self.closed_for, _SCALES * search.scale)

    def has_room(self, search: RateState, now: float) -> bool:
        """Return whether the rate is to be given up, as nothing was throttled for long enough.

        Args:
            search: The search for it.
            now: When a request was not throttled.
        """
        idle = max(0.0, now - self.seen_at) if self.seen_at > -math.inf else 0.0
        self.seen_at = now
        self.quiet_for += min(idle, max(_IDLE, _INTERVALS / search.rate))
        is_right = search.rate >= _NEARLY * self.fastest
        soonest = max(_RIGHT, _CLOSINGS * search.pause)  # a long window may not be full yet
        least = soonest if is_right else self.kept_for(search)
        if self.quiet_for < least:
            return False
        self.rate, self.needed = search.rate, 0
        return True

    def _weigh(self, number: int) -> None:
        """Weigh whether the last event was chance.

        Args:
            number: Its 429s, without those of trials after it, which come by chance as well.
        """
        if self.same:
            self.by_chance = 0.0
        elif number > max(1.0, _FEW * self.in_flight):
            self.by_chance = max(0.0, self.by_chance - _OUTWEIGHS)
        else:
            self.by_chance += 1.0 if self.in_flight >= _IN_FLIGHT else 0.5

    def _begin(self, now: float, in_flight: int = 0) -> None:
        """Begin an event.

        Args:
            now: When its first 429 arrived.
            in_flight: Requests in flight then, of which many may have been admitted.
        """
        if self.admitted or self.closed_at == -math.inf:
            if not self.is_by_chance:
                self.admitted_lately += self.admitted
            if self.admitted_lately > _LATELY:
                self.admitted_lately *= 0.5
                self.throttled_lately *= 0.5
            least, most = sorted((self.before, self.admitted))
            unknown = in_flight if in_flight >= _IN_FLIGHT else 0
            self.same = self.same + 1 if least > unknown and least >= _SAME * most else 0
            self.before, self.admitted = self.admitted, 0.0
            self.closed_at, self.number = now, 1
        self.since = self.seen_at = now
        self.quiet_for = 0.0
