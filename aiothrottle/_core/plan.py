"""The plan of a limiter: rate, burst, algorithm and guard, checked and made into one algorithm."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from aiothrottle._core.feedback import Feedback, GuardControl, RateControl, SlotsControl
from aiothrottle.adaptive import AdaptiveConcurrency, AdaptiveRate, SelfTuningGuard
from aiothrottle.adaptive.burst import LearnedBurst
from aiothrottle.adaptive.pace import Pace
from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    SupportsRate,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.bounded_burst import BoundedBurst
from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.algorithms.protocol import check_algorithm as check_members
from aiothrottle.amounts import REQUESTS
from aiothrottle.checks import check_number, check_whole
from aiothrottle.rate import Rate, RateLike, as_rate, as_rates, no_tuple
from aiothrottle.redact import shown
from aiothrottle.stores.shared_concurrency import SharedConcurrency

__all__ = [
    "AUTO",
    "AlgorithmChoice",
    "AlgorithmLike",
    "Burst",
    "ConcurrencyLimit",
    "Guard",
    "Plan",
    "RateLimit",
    "check_algorithm",
    "check_shareable",
    "make_plan",
    "misplaced",
    "names_of",
    "number_of",
    "slots_of",
]

AlgorithmLike: TypeAlias = type[Algorithm[Any]] | Algorithm[Any]
Guard: TypeAlias = float | Literal["auto"]
Burst: TypeAlias = float | Mapping[str, float]
AlgorithmChoice: TypeAlias = tuple[Burst | None, AlgorithmLike | None, Guard | None]
# One rate, or several that all hold.
_Rates: TypeAlias = RateLike | Sequence[RateLike]
RateLimit: TypeAlias = _Rates | Mapping[str, _Rates] | AdaptiveRate
ConcurrencyLimit: TypeAlias = int | AdaptiveConcurrency | SharedConcurrency

#: The guard that is measured.
AUTO: Final = "auto"
# The guard of a rate that processes share: a part of the period, and so many seconds at the most.
# Not measured: the period is part of the record in the store, and has to be the same for all. It
# makes up for tokens that are used late: by the delays of answers, the 20 ms for which a
# reservation is good, and processes that stand still.
_SHARED_PART, _SHARED_MOST = 0.045, 0.05
# Algorithms that keep their state when their period is stretched. The periods of a `FixedWindow`
# are the calendar's, and an algorithm of the user may not take over a state.
_STRETCHED = (SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket)


class Plan(NamedTuple):
    """An algorithm, and the controllers that change it."""

    algorithm: Algorithm[Any]
    rate: RateControl | None = None
    guard: GuardControl | None = None


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Makes an algorithm of rate, burst and algorithm for each guard and learned burst.

    Each of many keys may have one, so it is no `functools.partial`, which takes three times the
    memory.
    """

    rate_limit: _Rates | Mapping[str, _Rates] | None
    burst: Burst | None
    algorithm: AlgorithmLike | None

    def __call__(self, guard: float, learned: float | None = None) -> Algorithm[Any]:
        """Make the algorithm; `learned` is the burst that a server was found to accept."""
        rate_limit, burst, algorithm = self.rate_limit, self.burst, self.algorithm
        check_algorithm(burst, algorithm, guard, names_of(rate_limit))
        if rate_limit is None:
            if guard or burst is not None:
                raise ValueError("guard and burst say how a rate_limit is used: give one")
            if algorithm is None:
                return Unlimited()
            if isinstance(algorithm, type):
                raise ValueError(f"{algorithm.__name__} needs a rate_limit; or give an instance")
            algorithm.start()  # raises if it lacks a rate
            return algorithm
        if isinstance(rate_limit, Mapping):
            return PerResource(*_parts(rate_limit, burst, algorithm, guard, learned))
        algorithms = _algorithms(rate_limit, cast("float | None", burst), algorithm, guard, learned)
        return algorithms[0] if len(algorithms) == 1 else AllOf(*algorithms)


def _algorithms(
    rate_limit: _Rates,
    burst: float | None,
    algorithm: AlgorithmLike | None,
    guard: float,
    learned: float | None,
) -> list[Algorithm[Any]]:
    """Make an algorithm of each rate, and behind them those of the burst and the learned burst."""
    rates = [Rate(rate.limit, rate.period + guard) for rate in _rates(rate_limit)]
    algorithms = [_apply(algorithm, rate) for rate in rates]
    if burst is not None:
        fastest = _fastest(rates)
        if burst > fastest.in_whole_tokens.limit:
            raise ValueError(f"burst={burst!r} is more than the limit ever admits: {fastest}")
        pace = TokenBucket(fastest, burst=burst)
        if algorithm is TokenBucket and len(algorithms) == 1:
            algorithms.clear()  # the bucket of the burst is tighter
        algorithms.append(pace)
    if learned is not None:
        algorithms.append(BoundedBurst(_fastest(rates), learned))
    return algorithms


def _parts(
    rate_limit: Mapping[str, _Rates],
    burst: Burst | None,
    algorithm: AlgorithmLike | None,
    guard: float,
    learned: float | None,
) -> Iterator[tuple[str, Algorithm[Any]]]:
    """Make the algorithms of each resource, with its name; the learned burst is of requests."""
    bursts: Mapping[str, float] = burst if isinstance(burst, Mapping) else {}
    for name, rates in rate_limit.items():
        try:
            bound = learned if name == REQUESTS else None
            made = _algorithms(rates, bursts.get(name), algorithm, guard, bound)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the resource {name!r}: {error}") from error
        for each in made:
            yield name, each


def make_plan(
    rate_limit: RateLimit | None,
    choice: AlgorithmChoice,
    *,
    shared: bool = False,
    before: Feedback | None = None,
    begin_small: bool = False,
) -> Plan:
    """Make the algorithm of a limiter, and its controllers.

    Without a `guard` it is measured, or, with a store, a part of the period; unless there is no
    rate, or the period of the algorithm cannot be stretched.

    Args:
        rate_limit: As for `RateLimiter`.
        choice: Burst, algorithm and guard, as for `RateLimiter`.
        shared: Whether the rate is shared through a store.
        before: The feedback of the plan that this one replaces: its measured guard and learned
            burst are kept.
        begin_small: Whether a new burst begins with one token.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of range, or two of them contradict each other.
    """
    burst, algorithm, guard = choice
    if isinstance(rate_limit, AdaptiveRate):
        if guard or burst is not None or algorithm is not None:
            raise ValueError(
                "an AdaptiveRate has an algorithm of its own: no burst, algorithm or guard"
            )
        pace = Pace(rate_limit.initial, most=max(1.0, rate_limit.maximum))
        return Plan(pace, rate=RateControl(rate_limit))
    asked = guard == AUTO
    if isinstance(rate_limit, tuple):
        raise no_tuple(rate_limit)
    # As it is now: it is read again for each guard.
    if isinstance(rate_limit, list):
        rate_limit = tuple(rate_limit)
    elif isinstance(rate_limit, Mapping):
        rate_limit = _frozen(rate_limit)
    if guard is None:
        if rate_limit is None or not _may_stretch(algorithm):
            guard = 0.0
        else:
            guard = _shared_guard(_all_rates(rate_limit)) if shared else AUTO
    make = _Recipe(rate_limit, burst, algorithm)
    if guard != AUTO:
        return Plan(make(guard))
    if rate_limit is None:
        raise ValueError("guard says how a rate_limit is used: give one")
    known = None if before is None else before.guard
    control = _control(rate_limit, make, known, of_children=asked)
    if begin_small and not known:
        control.begin_small()
    return Plan(control.build(), guard=control)


def _control(
    rate_limit: _Rates | Mapping[str, _Rates],
    make: _Recipe,
    known: GuardControl | None,
    *,
    of_children: bool,
) -> GuardControl:
    """Make the controller of guard and burst, which continues with what is known."""
    period = min(rate.period for rate in _all_rates(rate_limit))
    most, interval = make(0.0).capacity.real, _interval(rate_limit)
    if known is not None:
        measured = known.measured.with_period(period)
        learned = known.burst.with_limit(most, interval)
    else:
        measured, learned = SelfTuningGuard(period), LearnedBurst(most, interval)
    intervals = max(1.0, period / interval)
    return GuardControl(measured, learned, make, intervals=intervals, of_children=of_children)


def _shared_guard(rates: list[Rate]) -> float:
    """Return the guard of a rate that processes share: the same in each of them."""
    return min(_SHARED_MOST, _SHARED_PART * min(rate.period for rate in rates))


def _may_stretch(algorithm: AlgorithmLike | None) -> bool:
    """Return whether the period of the algorithm may be stretched by default."""
    if isinstance(algorithm, type):
        return issubclass(algorithm, _STRETCHED)
    return algorithm is None or isinstance(algorithm, _STRETCHED)


def check_shareable(plan: Plan) -> None:
    """Reject an algorithm that a store cannot share."""
    if isinstance(plan.algorithm, Unlimited):
        raise ValueError(
            "a store shares limits between processes: give a rate_limit, or a SharedConcurrency"
        )
    if plan.rate or plan.guard:
        raise ValueError(
            "an adaptive rate or guard is measured in one process: "
            "a store needs a fixed rate and guard"
        )
    if max_wait(plan.algorithm) < math.inf and not isinstance(plan.algorithm, WaitUntil):
        raise ValueError(
            f"{plan.algorithm!r} rejects requests by the wait: of such algorithms a store shares "
            "a WaitUntil only, alone"
        )


def _fastest(rates: list[Rate]) -> Rate:
    return max(rates, key=lambda rate: rate.limit / rate.period)


def _interval(rate_limit: _Rates | Mapping[str, _Rates]) -> float:
    """Return the seconds of a request, evenly spaced; infinity if requests have no limit."""
    if isinstance(rate_limit, Mapping):
        if REQUESTS not in rate_limit:
            return math.inf  # no burst is learned, as for a slow rate
        rate_limit = rate_limit[REQUESTS]
    fastest = _fastest(_rates(rate_limit))
    return fastest.period / fastest.limit


def names_of(rate_limit: object, algorithm: AlgorithmLike | None = None) -> tuple[str, ...]:
    """Return the names of the resources of a limiter; none if its costs are numbers."""
    if isinstance(rate_limit, Mapping):
        return tuple(cast("Mapping[str, object]", rate_limit))
    return tuple(dict.fromkeys(algorithm.names)) if isinstance(algorithm, PerResource) else ()


def _frozen(rate_limit: Mapping[str, _Rates]) -> Mapping[str, _Rates]:
    """Check the names of the resources, and return a copy that nobody changes."""
    if not rate_limit:
        raise ValueError(
            "rate_limit is an empty mapping; write a rate for each resource, such as "
            "{'requests': '500/min', 'tokens': '200000/min'}, or None for no limit"
        )
    frozen: dict[str, _Rates] = {}
    for name, rates in rate_limit.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a resource must have a name, a text, got {shown(name)}")
        if isinstance(rates, tuple):
            raise no_tuple(cast("tuple[object, ...]", rates))
        frozen[name] = tuple(rates) if isinstance(rates, list) else rates
    return frozen


def _all_rates(rate_limit: _Rates | Mapping[str, _Rates]) -> list[Rate]:
    if not isinstance(rate_limit, Mapping):
        return _rates(rate_limit)
    found: list[Rate] = []
    for name, rates in rate_limit.items():
        try:
            found += _rates(rates)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the resource {name!r}: {error}") from error
    return found


def _rates(rate_limit: _Rates) -> list[Rate]:
    if isinstance(rate_limit, list | tuple):
        if not rate_limit:
            raise ValueError("rate_limit is an empty list; write a rate, or None for no limit")
        return [as_rate(rate) for rate in cast("Sequence[RateLike]", rate_limit)]
    return as_rates(cast("RateLike", rate_limit))


def slots_of(concurrency_limit: ConcurrencyLimit | None) -> SlotsControl | None:
    """Make the controller of the number of slots, if there is one."""
    if isinstance(concurrency_limit, AdaptiveConcurrency):
        return SlotsControl(concurrency_limit)
    if isinstance(concurrency_limit, SharedConcurrency):
        return None
    check_whole("concurrency_limit", concurrency_limit, "slots", none="None for no limit")
    return None


def misplaced(kind: str, rate_limit: object, others: tuple[object, ...]) -> TypeError:
    """Make the error of a limiter with positional arguments after the rate limit.

    Other libraries take the period there: 10 and 60 must not become 10 per second and 60 slots.
    """
    write = f"concurrency_limit={others[0]!r}"
    if isinstance(others[0], (Rate, str)):
        write = f"{kind}({[rate_limit, *others]!r})"
    elif all(type(each) in {int, float} for each in (rate_limit, others[0])):
        write = f"{kind}('{rate_limit}/{others[0]}s') or {write}"
    return TypeError(
        f"{kind}() takes only the rate limit by position, "
        f"got {', '.join(map(repr, others))} as well: write {write}"
    )


def number_of(concurrency_limit: ConcurrencyLimit | None) -> int | None:
    """Return the number of slots to begin with; None: no limit."""
    if isinstance(concurrency_limit, AdaptiveConcurrency):
        return concurrency_limit.initial
    if isinstance(concurrency_limit, SharedConcurrency):
        return 0  # only slots that are leased
    return concurrency_limit


def check_algorithm(
    burst: Burst | None,
    algorithm: AlgorithmLike | None,
    guard: float,
    resources: Sequence[str] = (),
) -> None:
    """Raise if a burst, an algorithm or a guard is invalid for any rate of these resources."""
    if not isinstance(guard, int | float):
        raise TypeError(f'guard must be a number of seconds or "auto", got {shown(guard)}')
    check_number("guard", guard, "seconds")
    if burst is not None and resources:
        _check_bursts(burst, resources)
    else:
        check_number("burst", burst, "tokens", least=1, none="None for the whole limit")
    if algorithm is not None:
        check_members(algorithm)


def _check_bursts(burst: Burst, resources: Sequence[str]) -> None:
    if not isinstance(burst, Mapping):
        raise TypeError(
            f"burst must be a mapping of the resources {', '.join(resources)} to tokens, "
            f"got {shown(burst)}"
        )
    for name, tokens in burst.items():
        if name not in resources:
            raise ValueError(
                f"burst may have the resources {', '.join(resources)}, got {shown(name)}"
            )
        check_number(f"the burst of {name!r}", tokens, "tokens", least=1)


def _apply(algorithm: AlgorithmLike | None, rate: Rate) -> Algorithm[Any]:
    """Return the algorithm with its rate."""
    if algorithm is None:
        return SlidingWindowLog(rate)
    if not isinstance(algorithm, type):
        if isinstance(algorithm, SupportsRate) and algorithm.rate is None:
            return algorithm.with_rate(rate)
        raise ValueError(f"two rates: rate_limit={rate} and that of {algorithm!r}; give one")
    try:
        return algorithm(rate)  # type: ignore[call-arg]
    except TypeError as error:
        raise TypeError(
            f"{algorithm.__name__} needs more than a rate: give an instance, and no rate_limit"
        ) from error
