"""The errors as values: they survive whatever carries them elsewhere."""

import copy
import pickle
from collections.abc import Callable

import pytest

from aiothrottle import (
    AttemptRefused,
    CostTooHigh,
    LimiterClosed,
    Overloaded,
    QueueFull,
    StoreUnavailable,
    ThrottleError,
    ThrottleTimeout,
)

ERRORS = [
    CostTooHigh(3, 2, key="a"),
    ThrottleTimeout(1.5, key=("a", 1)),
    QueueFull(7, 0.5, key="a"),
    LimiterClosed(key="a"),
    Overloaded("api.example.org", 0.5),
    AttemptRefused(429, None),
    StoreUnavailable("no answer"),
]


def through_pickle(error: ThrottleError) -> ThrottleError:
    again: ThrottleError = pickle.loads(pickle.dumps(error))
    return again


@pytest.mark.parametrize("carried", [through_pickle, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_out_of_another_process_as_it_went_in(
    error: ThrottleError, carried: Callable[[ThrottleError], ThrottleError]
) -> None:
    """A pool whose worker raises what cannot be read again breaks, or waits for ever."""
    again = carried(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
