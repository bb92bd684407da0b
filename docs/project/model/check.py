"""A small explicit-state model checker: every reachable state, and the properties of each."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)


class Step(NamedTuple, Generic[State]):
    """One possible event.

    Attributes:
        name: Its description.
        state: The state after it.
        progress: Whether the machine takes this step by itself, sooner or later. Steps of the
            environment, such as a newcomer, a cancellation, a crash, may never happen.
    """

    name: str
    state: State
    progress: bool


class BrokenError(Exception):
    """A property does not hold; `trace` is a shortest path to the violation."""

    def __init__(self, what: str, trace: list[str]) -> None:
        super().__init__(f"{what}, after: {', '.join(trace) or 'nothing'}")
        self.trace = trace


def check(
    start: State,
    steps: Callable[[State], Iterable[Step[State]]],
    wrong: Callable[[State], str | None],
    served: Callable[[State], bool],
) -> int:
    """Check every state that can be reached from `start`; return their number.

    Args:
        start: The initial state.
        steps: The possible events in a state.
        wrong: Safety: returns the violation in a state, or None.
        served: Liveness: whether nobody waits any more. It has to become true from every state by
            steps of progress alone, in any order: they form no cycle, and end
            only where it is true.

    Raises:
        BrokenError: One of them does not hold.
    """
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    order = deque([start])
    followers: dict[State, list[State]] = {}
    while order:
        state = order.popleft()
        problem = wrong(state)
        if problem is not None:
            raise BrokenError(problem, _trace(came_from, state))
        followers[state] = []
        for step in steps(state):
            if step.progress:
                followers[state].append(step.state)
            if step.state not in came_from:
                came_from[step.state] = (state, step.name)
                order.append(step.state)
        if not followers[state] and not served(state):
            raise BrokenError("somebody waits for ever", _trace(came_from, state))
    circle = _circle(followers)
    if circle is not None:
        raise BrokenError("it goes in a circle", _trace(came_from, circle))
    return len(came_from)


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names: list[str] = []
    while (before := came_from[state]) is not None:
        state, name = before
        names.append(name)
    return names[::-1]


def _circle(followers: dict[State, list[State]]) -> State | None:
    """Return a state that steps of progress lead back to, if there is any: Kahn's algorithm."""
    ways_in = dict.fromkeys(followers, 0)
    for after in followers.values():
        for state in after:
            ways_in[state] += 1
    free = [state for state, ways in ways_in.items() if not ways]
    left = len(ways_in)
    while free:
        left -= 1
        for state in followers[free.pop()]:
            ways_in[state] -= 1
            if not ways_in[state]:
                free.append(state)
    if not left:
        return None
    return next(state for state, ways in ways_in.items() if ways)
