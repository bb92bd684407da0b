"""A model of two processes that share a limit through a store, each reserving ahead.

The limit is `TOKENS` in any `PERIOD` ticks of the store's clock. A call may take `JOURNEY` ticks,
and a reservation may be used `PATIENCE` ticks late; so an observer that counts requests
may see them in periods that are shorter by both: that is what a `guard` is for. Instants are kept
relative to now, so there are finitely many states.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from docs.project.model.check import Step

TOKENS, PERIOD, HORIZON = 2, 5, 2
JOURNEY, PATIENCE = 1, 1
# At most so many are reserved in one call.
BATCH = 2


@dataclass(frozen=True)
class Design:
    """Parts of the design that can be left out, to check that each is needed."""

    #: A reservation not used in time goes back, and is not used later.
    gives_back_the_late: bool = True
    #: No instant is further away than the longest reservation, which bounds the loss by a crash.
    has_horizon: bool = True
    #: After a failed call the process calls again.
    asks_again: bool = True


class Slot(NamedTuple):
    """A reservation, in ticks from now: when it may be used here, and the store's instant."""

    ready: int
    instant: int


class Process(NamedTuple):
    """One of the processes.

    Attributes:
        waiting: How many requests are in the queue.
        slots: The reservations, in order.
        call: "" or "asked", or "answered": the reply is under way.
        reply: Its content: when each request may start, counted from the answer, and the instants.
        age: How many ticks ago the call began.
        again: Ticks until the next call is useful.
    """

    waiting: int = 0
    slots: tuple[Slot, ...] = ()
    call: str = ""
    reply: tuple[Slot, ...] = ()
    refused: int = 0
    age: int = 0
    again: int = 0


class World(NamedTuple):
    """A state.

    Attributes:
        instants: The instants that the store granted, in ticks from now; expired ones are dropped.
        seen: How many ticks ago a request started.
        newcomers: How many requests may still come.
        mishaps: How many faults may still happen: a process dies, a reply is lost, or a process is
            too busy to use its reservation in time.
    """

    processes: tuple[Process, ...] = (Process(), Process())
    instants: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    newcomers: int = 3
    mishaps: int = 1


Next: TypeAlias = Iterator[Step[World]]


def steps(design: Design) -> Callable[[World], Next]:
    """Return the possible events in a state."""

    def all_steps(world: World) -> Next:
        for number, process in enumerate(world.processes):
            for step in _steps_of(world, process, design):
                yield Step(step.name, _order(step.state, number), step.progress)
        # No call takes longer: it would have failed before.
        if all(process.age < JOURNEY for process in world.processes):
            yield from _pass(world)

    return all_steps


def _pass(world: World) -> Next:
    """Let a tick pass, if anything changes with it. A process may be late only so often."""
    after = _tick(world)
    late = any(p.waiting and p.slots and p.slots[0].ready <= -PATIENCE for p in world.processes)
    if not late:
        if after != world:
            yield Step("a tick", after, progress=True)
    elif world.mishaps:
        yield Step("a late tick", _spoilt(after), progress=False)


def _spoilt(world: World) -> World:
    return world._replace(mishaps=world.mishaps - 1)


def _order(changed: tuple[World, Process], number: int) -> World:
    world, process = changed
    # The names of the processes make no difference: half as many states.
    processes = sorted((process, world.processes[1 - number]))
    return world._replace(processes=tuple(processes))


def _steps_of(
    world: World, process: Process, design: Design
) -> Iterator[Step[tuple[World, Process]]]:
    if world.newcomers:
        after = world._replace(newcomers=world.newcomers - 1)
        yield Step("one comes", (after, process._replace(waiting=process.waiting + 1)), False)
    if world.mishaps and process != Process():
        yield Step("a process crashes", (_spoilt(world), Process()), False)
    missing = min(process.waiting, BATCH) - len(process.slots)
    if not process.call and missing > 0 and not process.again:
        yield Step("a process asks", (world, process._replace(call="asked", age=0)), True)
    if process.call == "asked":
        yield Step("the store decides", _decide(world, process, max(missing, 0), design), True)
    if process.call == "answered":
        if world.mishaps:
            again = 1 if design.asks_again else process.again
            call = "" if design.asks_again else "lost"
            lost = Process(process.waiting, process.slots, call=call, again=again)
            yield Step("the reply is lost", (_spoilt(world), lost), False)
        yield Step("a process reads the reply", (world, _read(process)), True)
    yield from _use(world, process, design)


def _decide(world: World, process: Process, missing: int, design: Design) -> tuple[World, Process]:
    instants, reply, refused = world.instants, list[Slot](), 0
    for _ in range(missing):
        delay = _first(instants)
        if delay > HORIZON and design.has_horizon:
            refused = delay
            break
        instants = tuple(sorted((*instants, delay)))
        reply.append(Slot(delay, delay))
    after = process._replace(call="answered", reply=tuple(reply), refused=refused)
    return world._replace(instants=instants), after


def _first(instants: tuple[int, ...]) -> int:
    """Return when the next request may start: after all others, so that none is overtaken."""
    latest = max(0, *instants, 0)
    if len(instants) < TOKENS:
        return latest
    return max(latest, sorted(instants)[-TOKENS] + PERIOD)


def _read(process: Process) -> Process:
    # Delays count from now, which is later than the answer: no request starts too early.
    slots = tuple(sorted((*process.slots, *process.reply)))
    # Not before the next instant may be within the longest reservation.
    again = max(1, process.refused - HORIZON) if process.refused else 0
    return Process(process.waiting, slots, again=again)


def _use(world: World, process: Process, design: Design) -> Iterator[Step[tuple[World, Process]]]:
    if not process.slots:
        return
    first = process.slots[0]
    if not process.waiting:
        yield Step("gives a slot back", _give_back(world, process), True)
    elif -first.ready > PATIENCE and design.gives_back_the_late:
        yield Step("gives a late slot back", _give_back(world, process), True)
    elif first.ready <= 0:
        after = process._replace(waiting=process.waiting - 1, slots=process.slots[1:])
        yield Step("one goes", (world._replace(seen=(*world.seen, 0)), after), True)


def _give_back(world: World, process: Process) -> tuple[World, Process]:
    """Drop a reservation; the store drops its instant, if it has not yet."""
    instants = list(world.instants)
    if process.slots[0].instant in instants:
        instants.remove(process.slots[0].instant)
    return world._replace(instants=tuple(instants)), process._replace(slots=process.slots[1:])


def _tick(world: World) -> World:
    def pass_in(process: Process) -> Process:
        slots = tuple(map(_aged, process.slots))
        reply = tuple(slot._replace(instant=slot.instant - 1) for slot in process.reply)
        return process._replace(
            slots=slots,
            reply=reply,
            age=process.age + bool(process.call),
            again=max(0, process.again - 1),
        )

    return world._replace(
        processes=tuple(map(pass_in, world.processes)),
        instants=tuple(instant - 1 for instant in world.instants if instant - 1 > -PERIOD),
        seen=tuple(age + 1 for age in world.seen if age + 1 < PERIOD),
    )


def _aged(slot: Slot) -> Slot:
    # Expired instants are all alike, however long ago.
    return Slot(max(slot.ready - 1, -PERIOD), max(slot.instant - 1, -PERIOD))


def wrong(world: World) -> str | None:
    """Safety: never above the limit, by the store's clock and by an observer's with a guard."""
    ordered = sorted(world.instants)
    for first, later in zip(ordered, ordered[TOKENS:], strict=False):
        if later - first < PERIOD:
            return "the store lets too many go in one period"
    if any(instant > HORIZON for instant in world.instants):
        return "a process that dies takes more with it than the longest reservation"
    guarded = PERIOD - JOURNEY - PATIENCE
    if sum(age < guarded for age in world.seen) > TOKENS:
        return f"more than {TOKENS} requests in {guarded} ticks"
    return None


def served(world: World) -> bool:
    """Liveness: all queues are empty, and no reservation is kept without a waiter."""
    return not any(process.waiting or process.slots for process in world.processes)
