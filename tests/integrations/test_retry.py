"""The retry policy: which failures are retried, and after how long."""

import itertools

import pytest

from aiothrottle.retry import Retry


def half() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("attempt", "method", "status", "retry_after", "expected"),
    [
        # Throttled: the server did nothing, so any method may be retried.
        (1, "GET", 429, 7.0, 7.0),
        (1, "POST", 429, 7.0, 7.0),
        (1, "POST", 503, 7.0, 7.0),
        # Without a Retry-After: half of 0.5 s, 1 s, 2 s.
        (1, "GET", 429, None, 0.25),
        (2, "GET", 429, None, 0.5),
        (3, "POST", 429, None, 1.0),
        # "In 0 seconds" is not "as often as you can".
        (1, "GET", 429, 0.0, 0.25),
        # Other failures: the first one may have been carried out.
        (1, "GET", 503, None, 0.25),
        (1, "POST", 503, None, None),
        (1, "GET", 502, None, 0.25),
        (1, "POST", 502, 7.0, None),
        (1, "DELETE", None, None, 0.25),
        (1, "PATCH", None, None, None),
        # No failure, or one that stays.
        (1, "GET", 200, None, None),
        (1, "GET", 200, 7.0, None),
        (1, "GET", 404, None, None),
        # Too many attempts, or too long a wait.
        (4, "GET", 429, 7.0, 7.0),
        (5, "GET", 429, 7.0, None),
        (1, "GET", 429, 120.0, 120.0),
        (1, "GET", 429, 120.5, None),
    ],
)
def test_delay_of_the_next_attempt(
    attempt: int, method: str, status: int | None, retry_after: float | None, expected: float | None
) -> None:
    delay = Retry().next_delay(
        attempt, method, status=status, retry_after=retry_after, uniform=half
    )
    assert delay == expected


def test_backoff_doubles_to_its_bound_with_full_jitter() -> None:
    retry = Retry(attempts=10**9, backoff=1, max_backoff=5)
    for attempt, most in zip([1, 2, 3, 4, 5, 10**6], [1.0, 2.0, 4.0, 5.0, 5.0, 5.0], strict=True):
        least = retry.next_delay(attempt, "GET", status=429, uniform=lambda: 0.0)
        greatest = retry.next_delay(attempt, "GET", status=429, uniform=lambda: 1.0)
        assert (least, greatest) == (0.0, most)


def test_decorrelated_jitter_is_bounded_by_the_last_delay() -> None:
    retry = Retry(attempts=10, backoff=1, max_backoff=20, jitter="decorrelated")
    table = [(0.0, 1.0, 3.0), (0.5, 1.0, 3.0), (2.0, 1.0, 6.0), (6.0, 1.0, 18.0), (9.0, 1.0, 20.0)]
    for previous, least, greatest in table:
        draws = [
            retry.next_delay(1, "GET", status=429, previous=previous, uniform=lambda: x)  # noqa: B023
            for x in (0.0, 1.0)
        ]
        assert draws == [least, greatest]


@pytest.mark.parametrize(
    ("method", "status", "throttled", "expected"),
    [
        # True is throttled, whatever the status and the method.
        ("POST", 200, True, 0.25),
        ("GET", 403, True, 0.25),
        # False is final.
        ("GET", 429, False, None),
        ("GET", 502, False, None),
        # None leaves it to the rules.
        ("POST", 429, None, 0.25),
        ("GET", 200, None, None),
    ],
)
def test_verdict_of_should_retry_comes_first(
    method: str, status: int, throttled: bool | None, expected: float | None
) -> None:
    delay = Retry().next_delay(1, method, status=status, throttled=throttled, uniform=half)
    assert delay == expected


def test_methods_may_be_in_lower_case() -> None:
    assert Retry(methods=["post"]).next_delay(1, "POST", status=502, uniform=half) == 0.25


def test_jitter_is_random_by_default() -> None:
    retry = Retry()
    draws = {retry.next_delay(1, "GET", status=429) for _ in itertools.repeat(None, 20)}
    assert len(draws) > 1


def test_single_attempt_is_never_retried() -> None:
    assert Retry(attempts=1).next_delay(1, "GET", status=429, retry_after=1.0) is None


def test_given_statuses_and_methods_are_used() -> None:
    retry = Retry(statuses={418}, methods={"POST"})
    assert retry.next_delay(1, "POST", status=418, uniform=half) == 0.25
    assert retry.next_delay(1, "GET", status=418, uniform=half) is None
    assert retry.next_delay(1, "POST", status=429, retry_after=1.0) is None


def test_retry_is_a_value() -> None:
    statuses = [429, 503]
    retry = Retry(statuses=statuses, methods=["get"])
    statuses.clear()
    assert retry == Retry(statuses={429, 503}, methods=frozenset({"GET"}))
    assert len({retry, Retry(statuses=(503, 429), methods=("GET",))}) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"attempts": 0}, ValueError, "attempts"),
        ({"attempts": 1.5}, TypeError, "attempts"),
        ({"attempts": True}, TypeError, "attempts"),
        ({"backoff": 0}, ValueError, "backoff"),
        ({"backoff": "1"}, TypeError, "backoff"),
        ({"max_backoff": float("nan")}, ValueError, "max_backoff"),
        ({"max_retry_after": float("inf")}, ValueError, "max_retry_after"),
        ({"statuses": "429"}, TypeError, "statuses"),
        ({"methods": "GET"}, TypeError, "methods"),
        ({"statuses": 429}, TypeError, "statuses"),
        ({"statuses": None}, TypeError, "statuses"),
        ({"statuses": ["429"]}, TypeError, "statuses"),
        ({"methods": None}, TypeError, "methods"),
        ({"methods": [429]}, TypeError, "methods"),
        ({"pause_jitter": -0.1}, ValueError, "pause_jitter must be a finite number, 0 or more"),
        ({"jitter": "none"}, ValueError, "jitter"),
        ({"budget": 500}, TypeError, "budget"),
        ({"should_retry": True}, TypeError, "should_retry"),
        ({"exceptions": OSError}, TypeError, "exceptions"),
        ({"exceptions": (BaseException,)}, TypeError, "exceptions"),
        ({"statuses": [True]}, TypeError, "statuses"),
        ({"backoff": True}, TypeError, "backoff"),
        ({"max_backoff": 0}, ValueError, "max_backoff"),
        ({"max_backoff": float("inf")}, ValueError, "max_backoff"),
        ({"pause_jitter": float("inf")}, ValueError, "pause_jitter"),
        ({"exceptions": (OSError, "x")}, TypeError, "exceptions"),
        ({"exceptions": [OSError]}, TypeError, "exceptions must be a tuple"),
        ({"should_retry": None, "budget": True}, TypeError, "budget"),
    ],
)
def test_wrong_argument_is_named(
    arguments: dict[str, object], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Retry(**arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_defaults() -> None:
    retry = Retry()
    assert (retry.attempts, retry.backoff, retry.max_backoff) == (5, 0.5, 30)
    assert (retry.max_retry_after, retry.pause_jitter, retry.jitter) == (120, 0.1, "full")
    assert retry.statuses == {429, 502, 503, 504}
    assert (retry.budget, retry.exceptions, retry.should_retry) == (None, None, None)


@pytest.mark.parametrize(
    ("statuses", "status", "reported", "throttled"),
    [
        (None, 429, False, True),
        (None, 420, False, True),
        (None, 529, False, True),
        (None, 503, False, True),
        (None, 502, False, False),
        (None, 403, False, False),
        (None, 403, True, True),
        ({429}, 503, False, False),
        ({429}, 503, True, True),
        ({429, 403}, 403, False, True),
        ({429, 403}, 529, True, False),
        (set[int](), 429, True, False),
        (set[int](), 403, True, True),
    ],
)
def test_throttled_statuses_are_recognised(
    statuses: set[int] | None, status: int, reported: bool, throttled: bool
) -> None:
    retry = Retry() if statuses is None else Retry(throttled_statuses=statuses)
    assert retry.is_throttled(status, reported=reported) == throttled


@pytest.mark.parametrize(
    ("method", "status", "retry_after", "retried"),
    [
        ("GET", 503, None, True),
        ("POST", 503, None, False),  # the server may have begun
        ("POST", 503, 1.0, True),
        ("POST", 429, None, True),
        ("POST", 529, None, True),
        ("POST", 502, 1.0, False),
    ],
)
def test_bare_503_is_retried_only_with_repeatable_methods(
    method: str, status: int, retry_after: float | None, retried: bool
) -> None:
    delay = Retry().next_delay(1, method, status=status, retry_after=retry_after)
    assert (delay is not None) == retried


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempts": 1},
        {"pause_jitter": 0},
        {"pause_jitter": 2.5},
        {"backoff": 0.001, "max_backoff": 0.001, "max_retry_after": 0.5},
        {"statuses": [500], "methods": ("get",)},
        {"exceptions": ()},
        {"exceptions": (OSError, ValueError)},
    ],
    ids=str,
)
def test_valid_arguments_are_kept(arguments: dict[str, object]) -> None:
    retry = Retry(**arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for name in arguments.keys() - {"methods", "statuses"}:
        assert getattr(retry, name) == arguments[name]


def test_backoff_above_its_bound_is_the_bound() -> None:
    retry = Retry(attempts=10, backoff=8, max_backoff=5)
    for attempt in (1, 2, 9):
        assert retry.next_delay(attempt, "GET", status=429, uniform=lambda: 1.0) == 5
    # The bound need not be a power of two of it.
    retry = Retry(attempts=10, backoff=1, max_backoff=6)
    draws = [
        retry.next_delay(attempt, "GET", status=429, uniform=lambda: 1.0) for attempt in (3, 4)
    ]
    assert draws == [4, 6]


def test_verdict_and_retry_after_take_precedence() -> None:
    retry = Retry(statuses=())
    assert retry.next_delay(1, "POST", status=200, throttled=True, retry_after=3.0) == 3
    assert retry.next_delay(1, "GET", status=429, retry_after=3.0) is None
    assert retry.next_delay(1, "GET", status=None, retry_after=None, uniform=half) == 0.25
