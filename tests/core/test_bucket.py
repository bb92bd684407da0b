"""The bucket: credit counts like requests asked for one by one; a server quota only tightens."""

from collections.abc import Callable

import pytest

from aiothrottle._core.bucket import LocalBucket
from aiothrottle.algorithms import SlidingWindowLog, TokenBucket
from aiothrottle.reported_quota import ReportedQuota


def bucket_of(limit: float = 4) -> LocalBucket:
    return LocalBucket(SlidingWindowLog(limit), lambda: 0.0)


def start_on_credit(bucket: LocalBucket, *instants: float) -> None:
    """Do what the fast path of `Permit` does."""
    for now in instants:
        bucket.credit -= 1
        bucket.timestamps.append(now)


def report(
    bucket: LocalBucket,
    remaining: float,
    *,
    now: float = 0.0,
    reset_after: float = 10.0,
    error: float = 0.0,
    in_flight: int = 0,
    evenly: bool = False,
    resource: str = "requests",
    cost: float = 1.0,
) -> None:
    bucket.update_quota(
        now,
        ReportedQuota(remaining, reset_after, resource, error=error),
        sent_at=now,
        cost=cost,
        in_flight=in_flight,
        evenly=evenly,
    )


# ---- credit --------------------------------------------------------------------------------------


def test_credit_is_the_number_that_may_start() -> None:
    bucket = bucket_of(4)
    bucket.take(0.0, 1.0)
    bucket.open_credit(0.0)
    assert bucket.credit == 3


def test_credit_is_bounded() -> None:
    bucket = bucket_of(1_000_000)
    bucket.open_credit(0.0)
    assert bucket.credit == 256


@pytest.mark.parametrize("instants", [(), (0.0,)], ids=["unused", "used"])
def test_flush_ends_the_credit(instants: tuple[float, ...]) -> None:
    bucket = bucket_of()
    bucket.open_credit(0.0)
    start_on_credit(bucket, *instants)
    bucket.flush()
    assert (bucket.credit, bucket.timestamps) == (0, [])


def test_flush_takes_each_token_once() -> None:
    bucket = bucket_of(4)
    bucket.open_credit(0.0)
    start_on_credit(bucket, 0.0, 0.25)
    bucket.flush()
    bucket.flush()
    assert (bucket.granted, bucket.remaining(0.5)) == (2, 2)


QUESTIONS: dict[str, Callable[[LocalBucket], object]] = {
    "delay": lambda bucket: bucket.delay(0.5, 1.0),
    "delay behind others": lambda bucket: bucket.delay(0.5, 1.0, 2.0),
    "startable": lambda bucket: bucket.startable(0.5, 10),
    "remaining": lambda bucket: bucket.remaining(0.5),
    "reset_after": lambda bucket: bucket.reset_after(0.5),
    "open_credit": lambda bucket: bucket.open_credit(0.5),
    "take": lambda bucket: bucket.take(0.5, 2.0),
    "charge": lambda bucket: bucket.charge(0.5, 2.0),
    "refund": lambda bucket: bucket.refund(0.5, 1.0, 0.25),
    "use": lambda bucket: bucket.use(SlidingWindowLog(5), 0.5),
    "update_quota": lambda bucket: report(bucket, 1.0, now=0.5),
    "restart": lambda bucket: bucket.restart(lambda: 7.0),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_start_on_credit_counts_like_a_normal_take(question: str) -> None:
    on_credit, asked = bucket_of(4), bucket_of(4)
    on_credit.open_credit(0.0)
    start_on_credit(on_credit, 0.0, 0.25, 0.5)
    on_credit.flush()
    for now in (0.0, 0.25, 0.5):
        asked.take(now, 1.0)
    assert QUESTIONS[question](on_credit) == QUESTIONS[question](asked)
    assert on_credit.credit == asked.credit
    assert on_credit.granted == asked.granted
    waits = [[bucket.delay(0.5, cost) for cost in (1, 2, 3, 4)] for bucket in (on_credit, asked)]
    assert waits[0] == waits[1]


# ---- taking, charging, refunding -----------------------------------------------------------------


def test_only_starts_are_counted_as_granted() -> None:
    bucket = bucket_of(4)
    bucket.take(0.0, 2.0)
    bucket.charge(0.0, 1.0)
    bucket.refund(0.0, 1.0, 0.0)
    assert (bucket.granted, bucket.remaining(0.0)) == (1, 2)


def test_charge_makes_a_debt() -> None:
    bucket = LocalBucket(TokenBucket("1/s", burst=1), lambda: 0.0)
    bucket.charge(0.0, 3.0)
    assert bucket.delay(0.0, 1.0) == 3.0


def test_refund_counts_from_the_take() -> None:
    bucket = bucket_of(2)
    bucket.take(0.0, 1.0)
    bucket.take(0.5, 1.0)
    bucket.refund(0.5, 1.0, 0.0)
    assert bucket.remaining(0.75) == 1
    assert bucket.delay(0.75, 2.0) == 0.75  # the later token still counts


# ---- another algorithm, another clock ------------------------------------------------------------


def test_another_algorithm_keeps_spent_tokens() -> None:
    bucket = bucket_of(4)
    bucket.take(0.0, 3.0)
    bucket.use(SlidingWindowLog(5), 0.0)
    assert (bucket.capacity, bucket.remaining(0.0)) == (5, 2)


def test_another_algorithm_keeps_the_server_quota() -> None:
    bucket = bucket_of(4)
    report(bucket, 1.0)
    bucket.use(SlidingWindowLog(50), 0.0)
    assert (bucket.own[0], bucket.capacity) == (SlidingWindowLog(50), 50)
    assert (bucket.quota_remaining(0.0), bucket.delay(0.0, 2.0)) == (1, 10.0)


def test_restart_forgets_instants_of_the_old_clock() -> None:
    bucket = bucket_of(4)
    bucket.take(1000.0, 4.0)
    bucket.restart(lambda: 7.0)
    assert (bucket.clock(), bucket.remaining(7.0)) == (7.0, 4)


# ---- the server's quota --------------------------------------------------------------------------


def test_without_a_report_the_quota_delays_nothing() -> None:
    bucket = bucket_of(1)
    assert (bucket.quota_remaining(0.0), bucket.quota_delay(0.0, 9.0)) == (None, 0.0)


@pytest.mark.parametrize(("remaining", "left", "delay"), [(2.0, 2, 10.0), (100.0, 4, 1.0)])
def test_tighter_of_limit_and_quota_decides(remaining: float, left: float, delay: float) -> None:
    bucket = bucket_of(4)
    report(bucket, remaining)
    assert bucket.remaining(0.0) == left
    bucket.take(0.0, left)
    assert bucket.delay(0.0, 1.0) == delay


def test_quota_delay_ignores_the_configured_limit() -> None:
    bucket = bucket_of(4)
    report(bucket, 9.0)
    bucket.take(0.0, 4.0)
    assert (bucket.delay(0.0, 1.0), bucket.quota_delay(0.0, 1.0)) == (1.0, 0.0)
    assert bucket.quota_delay(0.0, 6.0) == 10.0


def test_first_report_excludes_requests_in_flight() -> None:
    bucket = bucket_of(100)
    report(bucket, 9.0, in_flight=3)
    assert bucket.quota_remaining(0.0) == 6
    report(bucket, 9.0, now=50.0, in_flight=3)  # all three have been recorded since
    assert bucket.quota_remaining(50.0) == 9


@pytest.mark.parametrize("evenly", [False, True])
def test_first_report_decides_on_spreading(evenly: bool) -> None:
    bucket = bucket_of(100)
    report(bucket, 10.0, evenly=evenly)
    report(bucket, 10.0, evenly=not evenly)
    bucket.take(0.0, 1.0)
    assert bucket.quota_delay(0.0, 1.0) == (1.0 if evenly else 0.0)


def test_quota_ends_at_its_reset() -> None:
    bucket = bucket_of(4)
    report(bucket, 0.0, reset_after=10.0)
    assert bucket.quota_remaining(9.999) == 0
    assert (bucket.quota_remaining(10.0), bucket.delay(10.0, 4.0)) == (None, 0.0)


def test_algorithm_stays_reachable_beside_a_quota() -> None:
    bucket = bucket_of(4)
    algorithm, state = bucket.own
    report(bucket, 1.0)
    assert bucket.algorithm is not algorithm
    assert bucket.own[0] is algorithm
    assert bucket.own[1] is state
