"""Conditions that everything read from a response must meet."""

from aiothrottle.headers import Policy, ServerLimits

LONGEST = 2.0**31
GREATEST = 1e18


def check(limits: ServerLimits) -> None:
    top = Policy(None, limits.limit, limits.window, limits.remaining, limits.reset_after)
    for policy in (top, *limits.policies):
        for count in (policy.quota, policy.remaining):
            assert count is None or 0 <= count <= GREATEST, policy
        assert_seconds(policy.reset_after)
        assert_seconds(policy.window)
        assert policy.window is None or policy.window > 0, policy
    assert_seconds(limits.retry_after)
    assert isinstance(limits.throttled, bool)
    for text in (limits.scope, limits.reason):
        assert text is None or 0 < len(text) <= 64


def assert_seconds(seconds: float | None) -> None:
    # A NaN fails too: it lies in no interval.
    assert seconds is None or (isinstance(seconds, float) and 0.0 <= seconds <= LONGEST), seconds
