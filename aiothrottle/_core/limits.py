"""The limits that the user asked for and the server reported, and the algorithm that they make.

Invariant: a wrong argument, or two that contradict each other, raise before anything is changed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from aiothrottle._checks import check_number, check_whole, number, shown
from aiothrottle._core.feedback import Feedback, RateControl, SlotsControl
from aiothrottle.adaptive import AdaptiveConcurrency, AdaptiveRate
from aiothrottle.adaptive.guard import GuardControl
from aiothrottle.adaptive.server_window import ServerWindow
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
from aiothrottle.algorithms.level import Pace
from aiothrottle.algorithms.protocol import check_algorithm as check_members
from aiothrottle.algorithms.protocol import max_wait
from aiothrottle.amounts import REQUESTS
from aiothrottle.rate import Rate, RateLike, as_rate, as_rates, no_tuple
from aiothrottle.stores.store import SharedConcurrency

AlgorithmLike: TypeAlias = type[Algorithm[Any]] | Algorithm[Any]
Guard: TypeAlias = float | Literal["auto"]
Burst: TypeAlias = float | Mapping[str, float]
# One rate, or several that all hold.
_Rates: TypeAlias = RateLike | Sequence[RateLike]
RateLimit: TypeAlias = _Rates | Mapping[str, _Rates] | AdaptiveRate
ConcurrencyLimit: TypeAlias = int | AdaptiveConcurrency | SharedConcurrency

#: The guard that is measured, and the rate limit that follows the rates that the server reports.
AUTO: Final = "auto"
SERVER: Final = "server"
# The guard of a rate that processes share: a part of the period, and so many seconds at the most.
# Not measured: the period is part of the record in the store, and has to be the same for all. It
# makes up for tokens that are used late: by the delays of answers, the 20 ms for which a
# reservation is good, and processes that stand still.
_SHARED_PART, _SHARED_MOST = 0.045, 0.05
# Algorithms that keep their state when their period is stretched. The periods of a `FixedWindow`
# are the calendar's, and an algorithm of the user may not take over a state.
_STRETCHED = (SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket)
# The name of the rates of a limiter without resources.
_UNNAMED = ""


class Unchanged(Enum):
    """The default of the arguments of `update`: leave the limit as it is."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class Plan(NamedTuple):
    """An algorithm, and the controllers that change it."""

    algorithm: Algorithm[Any]
    #: Its rates, without the guard; of resources, those of requests.
    rates: tuple[Rate, ...] = ()
    rate: RateControl | None = None
    guard: GuardControl | None = None
    #: The guard in seconds, if it is not measured; None: it is, or there is no rate limit.
    fixed_guard: float | None = None
    #: Makes the algorithm with another guard, if it is measured.
    recipe: "Recipe | None" = None

    def guarded(self, guard: float) -> Algorithm[Any]:
        """Return the algorithm with that guard, in seconds."""
        return self.algorithm if self.recipe is None else self.recipe.algorithm(guard)


@dataclass(slots=True, eq=False, repr=False)
class Limits:
    """What the user asked for, and what the server has reported."""

    rate_limit: RateLimit | Literal["server"] | None
    concurrency_limit: ConcurrencyLimit | None
    # Kept for changes of the rate alone.
    burst: Burst | None
    algorithm: AlgorithmLike | None
    guard: Guard | None
    learn_rate: bool
    given_name: str | None
    #: The resources that a cost may name; none if its costs are numbers.
    resources: tuple[str, ...] = field(init=False)
    #: The rates that the server reported, or that follow from its reports.
    server_rates: tuple[Rate, ...] = ()
    #: Whether the server is followed and has reported no rate yet: one request at a time.
    rate_unknown: bool = False
    #: What is known of the windows of quotas that are reported without a rate, by name.
    windows: dict[str, ServerWindow] = field(default_factory=dict[str, ServerWindow])
    #: Answers without a report.
    answers: int = 0
    #: The latest end of a spent quota that was logged.
    spent_until: float = -math.inf
    #: Whether the user has changed them, so that a new limiter would have other limits.
    are_updated: bool = False
    #: Whether a learned burst begins with one token, as every outcome is reported.
    begin_small: bool = False

    def __post_init__(self) -> None:
        """Read the names of the resources."""
        self.resources = _names_of(self.rate_limit, self.algorithm)

    @property
    def name(self) -> str:
        """The name of the limiter: the one that the user gave, or else its limits."""
        return self.given_name or self.text

    @property
    def text(self) -> str:
        """The limits as the user wrote them."""
        rate_limit, slots = self.rate_limit, self.concurrency_limit
        if isinstance(rate_limit, Mapping):
            return ", ".join(f"{name} {_text(rates)}" for name, rates in rate_limit.items())
        if rate_limit is not None:
            return "rate_limit='server'" if rate_limit == SERVER else _text(rate_limit)
        if self.algorithm is not None:
            return repr(self.algorithm)
        return "no limit" if slots is None else f"concurrency_limit={slots!r}"

    @property
    def burst_of_requests(self) -> float | None:
        """The burst that the user gave; of resources, that of requests. None: none was given."""
        return self.burst.get(REQUESTS) if isinstance(self.burst, Mapping) else self.burst

    @property
    def learns_rate(self) -> bool:
        """Whether a rate is learned, as none is given and every outcome is reported."""
        follows = self.rate_limit == SERVER and not self.server_rates
        given = not (self.rate_limit is None or follows) or self.algorithm is not None
        adapts = isinstance(self.concurrency_limit, AdaptiveConcurrency)
        return self.learn_rate and self.begin_small and not given and not adapts

    @property
    def follows_server(self) -> bool:
        """Whether the user wants the server's rates to be followed."""
        return self.rate_limit == SERVER

    @property
    def shares_slots(self) -> bool:
        """Whether the slots are leased from a store, so that nothing here changes their number."""
        return isinstance(self.concurrency_limit, SharedConcurrency)

    @property
    def slots(self) -> int | None:
        """The number of slots to begin with; None: no limit."""
        if self.rate_unknown:
            return 1
        limit = self.concurrency_limit
        if isinstance(limit, AdaptiveConcurrency):
            return limit.initial
        return 0 if isinstance(limit, SharedConcurrency) else limit  # only slots that are leased

    def plan(self, *, shared: bool) -> Plan:
        """Make the algorithm of the limits, and its controllers.

        Args:
            shared: Whether the rate is shared through a store.
        """
        if self.rate_limit != SERVER:
            if self.rate_limit is None:
                self._check_without_rate()
            plan = self.plan_for(self.rate_limit, shared=shared)
            if shared:
                check_shareable(plan)
            return plan
        if shared:
            raise ValueError(
                "rate_limit='server' holds for one process: with a store, give a fixed rate"
            )
        # Any rate of the server must make a valid algorithm: reject wrong arguments now.
        self.plan_for(Rate(1), of_server=True)
        self.rate_unknown = True
        return Plan(Unlimited())

    def plan_for(
        self,
        rate_limit: RateLimit | None,
        *,
        shared: bool = False,
        before: Feedback | None = None,
        of_server: bool = False,
    ) -> Plan:
        """Make the plan of another rate limit. Changes nothing.

        Where the user gave no guard it is measured, or, with a store, a part of the period; unless
        the algorithm cannot be stretched.

        Args:
            rate_limit: The rate limit.
            shared: Whether the rate is shared through a store.
            before: The feedback of the plan that this one replaces: its measured guard and learned
                burst are kept.
            of_server: Whether the server has reported it: a small one is no error of the user.
        """
        guard, burst = self.guard, self.burst
        if isinstance(rate_limit, AdaptiveRate):
            if guard or burst is not None or self.algorithm is not None:
                raise ValueError(
                    "an AdaptiveRate has an algorithm of its own: no burst, algorithm or guard"
                )
            pace = Pace(rate_limit.initial, most=max(1.0, rate_limit.maximum))
            return Plan(pace, rate=RateControl(rate_limit))
        if rate_limit is None:  # whatever guard and burst there were
            algorithm = _without_rate(self.algorithm)
            return Plan(algorithm, _rates_of(algorithm))
        self._check_choice(_names_of(rate_limit))
        if of_server and isinstance(burst, int | float):
            burst = min(burst, _fastest(_rates(rate_limit)).in_whole_tokens.limit)
        recipe = Recipe(rate_limit, burst, self.algorithm)
        if guard is None:
            guard = AUTO if _may_stretch(self.algorithm) else 0.0
            if guard and shared:
                guard = min(_SHARED_MOST, _SHARED_PART * recipe.period)
        if guard != AUTO:
            return Plan(recipe.algorithm(guard), recipe.rates, fixed_guard=guard)
        known, unguarded = before and before.guard, recipe.algorithm(0.0)
        limit = recipe.rates, recipe.period, unguarded.capacity.real
        if known:
            control = known.with_limit(*limit)
        else:
            control = GuardControl(*limit, of_children=self.guard == AUTO)
            if self.begin_small:
                control.begin_small()
        seconds = control.measured.seconds
        algorithm = recipe.algorithm(seconds) if seconds else unguarded
        return Plan(algorithm, recipe.rates, guard=control, recipe=recipe)

    def _check_choice(self, resources: Sequence[str]) -> None:
        """Raise if burst, algorithm or guard is invalid for any rate of these resources."""
        burst = self.burst
        if self.guard != AUTO:
            check_number("guard", self.guard, "seconds", none='"auto"')
        if burst is not None and resources:
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
        else:
            check_number("burst", burst, "tokens", least=1, none="None for the whole limit")
        if self.algorithm is not None:
            check_members(self.algorithm)

    def _check_without_rate(self) -> None:
        """Raise if a choice of the user lacks the rate limit that it is about."""
        self._check_choice(())
        if self.guard or self.burst is not None:
            raise ValueError("guard and burst say how a rate_limit is used: give one")
        if isinstance(self.algorithm, type):
            raise ValueError(f"{self.algorithm.__name__} needs a rate_limit; or give an instance")
        if self.algorithm is not None:
            self.algorithm.start()  # raises if it lacks a rate

    def check_resources(self, rate_limit: object) -> None:
        """Raise ValueError if a new rate limit has other resources: waiters have costs in these."""
        names = _names_of(rate_limit)
        if set(self.resources) != set(names):
            has = ", ".join(sorted(self.resources)) or "no resources"
            raise ValueError(
                f"this limiter has {has}, and the new rate_limit {', '.join(names) or 'none'}: "
                "give a rate for each of the same resources, or make a new limiter"
            )


class _Part(NamedTuple):
    """The rates of one resource, and its burst; None: none was given."""

    rates: list[Rate]
    burst: float | None

    def algorithms(self, algorithm: AlgorithmLike | None, guard: float) -> list[Algorithm[Any]]:
        """Make an algorithm of each rate, and behind them that of the burst."""
        rates = [Rate(rate.limit, rate.period + guard) for rate in self.rates]
        if self.burst is None:
            return [_apply(algorithm, rate) for rate in rates]
        bucket = TokenBucket(_fastest(rates), burst=self.burst)
        if algorithm is TokenBucket and len(rates) == 1:
            return [bucket]  # it is tighter
        return [*(_apply(algorithm, rate) for rate in rates), bucket]


class Recipe:
    """Makes the algorithm of rates and bursts, which are checked, for each guard."""

    __slots__ = ("_algorithm", "_parts", "period", "rates")

    def __init__(
        self,
        rate_limit: _Rates | Mapping[str, _Rates],
        burst: Burst | None,
        algorithm: AlgorithmLike | None,
    ) -> None:
        self._parts: dict[str, _Part] = _parts(rate_limit, burst, algorithm)
        self._algorithm = algorithm
        #: The rates of requests.
        self.rates: tuple[Rate, ...] = ()
        if requests := self._parts.get(_UNNAMED) or self._parts.get(REQUESTS):
            self.rates = tuple(dict.fromkeys(requests.rates))
        #: The shortest of the periods, in seconds.
        self.period: float = min(it.period for part in self._parts.values() for it in part.rates)

    def algorithm(self, guard: float) -> Algorithm[Any]:
        """Make the algorithm with the guard, in seconds."""
        if guard > self.period:
            raise ValueError(
                f"guard must be at most the period of the rate, {number(self.period)} s, got "
                f"{guard!r}"
            )
        if _UNNAMED in self._parts:
            algorithms = self._parts[_UNNAMED].algorithms(self._algorithm, guard)
            return algorithms[0] if len(algorithms) == 1 else AllOf(*algorithms)
        return PerResource(
            *(  # in an order of their own, as the rates
                (name, algorithm)
                for name, part in sorted(self._parts.items())
                for algorithm in part.algorithms(self._algorithm, guard)
            )
        )


def slots_of(concurrency_limit: ConcurrencyLimit | None) -> SlotsControl | None:
    """Check a concurrency limit, and make the controller of the number of slots, if it has one."""
    if isinstance(concurrency_limit, AdaptiveConcurrency):
        return SlotsControl(concurrency_limit)
    if not isinstance(concurrency_limit, SharedConcurrency):
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


# ---- rates ---------------------------------------------------------------------------------------


def _names_of(rate_limit: object, algorithm: AlgorithmLike | None = None) -> tuple[str, ...]:
    """Return the names of the resources of a limiter; none if its costs are numbers."""
    if isinstance(rate_limit, Mapping):
        names = tuple(cast("Mapping[object, object]", rate_limit))
        for name in names:
            if not isinstance(name, str) or not name:
                raise TypeError(f"a resource must have a name, a text, got {shown(name)}")
        return cast("tuple[str, ...]", names)
    return tuple(dict.fromkeys(algorithm.names)) if isinstance(algorithm, PerResource) else ()


def _parts(
    rate_limit: _Rates | Mapping[str, _Rates], burst: Burst | None, algorithm: AlgorithmLike | None
) -> dict[str, _Part]:
    """Return the rates and the burst of each resource."""
    if not isinstance(rate_limit, Mapping):
        assert not isinstance(burst, Mapping)
        return {_UNNAMED: _part(rate_limit, burst, algorithm)}
    if not rate_limit:
        raise ValueError(
            "rate_limit is an empty mapping; write a rate for each resource, such as "
            "{'requests': '500/min', 'tokens': '200000/min'}, or None for no limit"
        )
    bursts: Mapping[str, float] = burst if isinstance(burst, Mapping) else {}
    found: dict[str, _Part] = {}
    for name, rates in rate_limit.items():
        if isinstance(rates, tuple):
            raise no_tuple(cast("tuple[object, ...]", rates))
        try:
            found[name] = _part(rates, bursts.get(name), algorithm)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the resource {name!r}: {error}") from error
    return found


def _part(rate_limit: _Rates, burst: float | None, algorithm: AlgorithmLike | None) -> _Part:
    """Return the rates and the burst of one resource."""
    # In an order of their own: another process may give the same rates in another order.
    rates = sorted(_rates(rate_limit), key=lambda rate: (rate.period, rate.limit))
    if burst is not None:
        fastest = _fastest(rates)
        if burst > fastest.in_whole_tokens.limit:
            raise ValueError(
                f"burst={burst!r} is more than the limit of {fastest} ever admits at once; a "
                f"bucket that is larger than the rate is algorithm=TokenBucket(burst={burst!r})"
            )
        if isinstance(algorithm, TokenBucket) and not math.isnan(algorithm.burst):
            raise ValueError(
                f"two bursts: burst={burst!r} and that of {algorithm!r}; give one of them"
            )
    return _Part(rates, burst)


def _rates(rate_limit: _Rates | Mapping[str, _Rates] | None) -> list[Rate]:
    if isinstance(rate_limit, list):
        if not rate_limit:
            raise ValueError("rate_limit is an empty list; write a rate, or None for no limit")
        return [as_rate(rate) for rate in cast("Sequence[RateLike]", rate_limit)]
    if isinstance(rate_limit, tuple):
        raise no_tuple(rate_limit)
    return as_rates(cast("RateLike", rate_limit))


def _fastest(rates: Sequence[Rate]) -> Rate:
    return max(rates, key=lambda rate: rate.limit / rate.period)


def _text(rate_limit: _Rates | AdaptiveRate) -> str:
    if isinstance(rate_limit, str):
        return rate_limit.strip()
    if isinstance(rate_limit, Sequence):
        return " and ".join(_text(rate) for rate in rate_limit)
    return repr(rate_limit) if isinstance(rate_limit, AdaptiveRate) else str(as_rate(rate_limit))


# ---- algorithms ----------------------------------------------------------------------------------


def _without_rate(algorithm: AlgorithmLike | None) -> Algorithm[Any]:
    """Return the algorithm of a limiter that has no rate."""
    if isinstance(algorithm, type | None):
        return Unlimited()
    if isinstance(algorithm, SupportsRate) and algorithm.rate is None:
        return Unlimited()
    return algorithm


def _rates_of(algorithm: Algorithm[Any]) -> tuple[Rate, ...]:
    """Return the rates of an algorithm that was given with them; of resources, of requests."""
    if isinstance(algorithm, PerResource):
        algorithm = algorithm.by_resource.get(REQUESTS, Unlimited())
    algorithms = algorithm.algorithms if isinstance(algorithm, AllOf) else (algorithm,)
    found = (getattr(each, "rate", None) for each in algorithms)
    return tuple(rate for rate in found if isinstance(rate, Rate))


def _apply(algorithm: AlgorithmLike | None, rate: Rate) -> Algorithm[Any]:
    """Return the algorithm with its rate."""
    if algorithm is None:
        return SlidingWindowLog(rate)
    if not isinstance(algorithm, type):
        if isinstance(algorithm, SupportsRate) and algorithm.rate is None:
            return algorithm.with_rate(rate)
        raise ValueError(f"two rates: rate_limit and that of {algorithm!r}; give one")
    try:
        return algorithm(rate)  # type: ignore[call-arg]
    except TypeError as error:
        raise TypeError(
            f"{algorithm.__name__} needs more than a rate: give an instance, and no rate_limit"
        ) from error


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
