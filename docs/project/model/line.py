"""A model of the queue of one limiter: tasks, slots, tokens, a timer, and a clock that ticks.

The limit is `TOKENS` in any `PERIOD` ticks, and `SLOTS` at once. Instants are kept as ages and
timers as their remaining time, so there are finitely many states; a tick may come between any two
steps, as it does on a machine that is busy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from docs.project.model.check import Step

TOKENS, PERIOD, SLOTS = 2, 3, 2


@dataclass(frozen=True)
class Design:
    """Parts of the design that can be left out, to check that each is needed."""

    #: The token gets its timestamp when its task resumes, and not when it is granted.
    stamps_late: bool = True
    #: A cancellation of a granted waiter wakes the consumer for the next one.
    wakes_after_cancel: bool = True
    #: A turn of the consumer that ended for want of a slot is repeated when one is free.
    wakes_after_leaving: bool = True
    #: A turn of the consumer that ended for want of tokens is repeated when there are some.
    sets_timer: bool = True
    #: The slot of a waiter cancelled after its grant comes back.
    returns_slot: bool = True


@dataclass(frozen=True)
class Line:
    """A state.

    Attributes:
        waiters: In order; "waiting", "granted", or "cancelled" in one of these before its task ran.
        inside: How many hold a permit.
        spent: Ages of the tokens that the algorithm has taken.
        seen: Ages of the requests, as an observer outside counts them.
        timer: Ticks until the next turn of the consumer; None: no timer.
        looking: Whether the consumer is about to take its turn.
        starved: Whether the last turn ended for want of a slot.
        newcomers, cancels: How many requests may still arrive, and how many may still be cancelled.
    """

    waiters: tuple[str, ...] = ()
    inside: int = 0
    free: int = SLOTS
    spent: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    timer: int | None = None
    looking: bool = False
    starved: bool = False
    newcomers: int = 5
    cancels: int = 2

    @property
    def resuming(self) -> int:
        """How many are granted and have not run yet."""
        return sum(waiter in {"granted", "granted, cancelled"} for waiter in self.waiters)


Next: TypeAlias = Iterator[Step[Line]]


def steps(design: Design) -> Callable[[Line], Next]:
    """Return the possible events in a state."""

    def all_steps(line: Line) -> Next:
        if line.newcomers:
            yield Step("one comes", _come(line), progress=False)
        if line.cancels:
            yield from _cancel(line)
        if line.looking:
            yield Step("the consumer looks", _look(line, design), progress=True)
        if line.timer == 0:
            yield Step("the timer fires", replace(line, timer=None, looking=True), progress=True)
        if line.inside:
            yield Step("one leaves", _leave(line, design), progress=True)
        yield from _run(line, design)
        if line.spent or line.seen or line.timer:
            yield Step("a tick", _tick(line), progress=True)

    return all_steps


def _come(line: Line) -> Line:
    line = replace(line, newcomers=line.newcomers - 1)
    if not line.waiters and line.free and len(line.spent) < TOKENS:
        return _enter(replace(line, free=line.free - 1, spent=(*line.spent, 0)))
    # A newcomer joins the queue if there is one; otherwise it starts a consumer.
    looking = line.looking or not line.waiters
    return replace(line, waiters=(*line.waiters, "waiting"), looking=looking)


def _enter(line: Line) -> Line:
    return replace(line, inside=line.inside + 1, seen=(*line.seen, 0))


def _cancel(line: Line) -> Next:
    for place, waiter in enumerate(line.waiters):
        if not waiter.endswith("cancelled"):
            waiters = _put(line.waiters, place, f"{waiter}, cancelled")
            after = replace(line, waiters=waiters, cancels=line.cancels - 1)
            yield Step(f"number {place + 1} is cancelled", after, progress=False)


def _look(line: Line, design: Design) -> Line:
    line = replace(line, looking=False, timer=None, starved=False)
    if line.resuming:
        return line  # the last of them wakes the consumer
    for place, waiter in enumerate(line.waiters):
        if waiter != "waiting":
            continue
        if not line.free:
            return replace(line, starved=True)
        ahead = 0 if not design.stamps_late else line.resuming
        if len(line.spent) + ahead >= TOKENS:
            oldest = max(line.spent, default=0)
            return replace(line, timer=PERIOD - oldest) if design.sets_timer else line
        line = replace(line, waiters=_put(line.waiters, place, "granted"), free=line.free - 1)
        if not design.stamps_late:
            line = replace(line, spent=(*line.spent, 0))
    return line


def _run(line: Line, design: Design) -> Next:
    """Have each task run that can."""
    for place, waiter in enumerate(line.waiters):
        rest = line.waiters[:place] + line.waiters[place + 1 :]
        last = line.resuming == 1
        if waiter == "granted":
            if not design.stamps_late:
                after = _enter(replace(line, waiters=rest))
            elif len(line.spent) < TOKENS:
                after = _enter(replace(line, waiters=rest, spent=(*line.spent, 0)))
            else:  # overtaken meanwhile: back to the queue
                waiters = _put(line.waiters, place, "waiting")
                after = replace(line, waiters=waiters, free=line.free + 1, looking=True)
            if last and line.timer is None:
                after = replace(after, looking=True)
        elif waiter == "granted, cancelled":
            slot = 1 if design.returns_slot else 0
            looking = line.looking or design.wakes_after_cancel
            after = replace(line, waiters=rest, free=line.free + slot, looking=looking)
        elif waiter == "waiting, cancelled":
            looking = line.looking or place == 0 or line.resuming > 0
            after = replace(line, waiters=rest, looking=looking)
        else:
            continue
        yield Step(f"number {place + 1} runs", after, progress=True)


def _leave(line: Line, design: Design) -> Line:
    looking = line.looking or (line.starved and design.wakes_after_leaving)
    return replace(line, inside=line.inside - 1, free=line.free + 1, looking=looking)


def _tick(line: Line) -> Line:
    return replace(
        line,
        spent=tuple(age + 1 for age in line.spent if age + 1 < PERIOD),
        seen=tuple(age + 1 for age in line.seen if age + 1 < PERIOD),
        timer=max(0, line.timer - 1) if line.timer is not None else None,
    )


def _put(waiters: tuple[str, ...], place: int, what: str) -> tuple[str, ...]:
    return (*waiters[:place], what, *waiters[place + 1 :])


def wrong(line: Line) -> str | None:
    """Safety: never above a limit, and no slot is lost or made."""
    if len(line.seen) > TOKENS:
        return f"{len(line.seen)} requests in one period"
    if line.inside > SLOTS:
        return f"{line.inside} at once"
    if line.free + line.resuming + line.inside != SLOTS:
        return "a slot is lost, or made"
    return None


def served(line: Line) -> bool:
    """Liveness: the queue is empty."""
    return not line.waiters
