"""What holds of everything that is read, whatever it was read from."""

from aiothrottle.headers import Policy, ServerLimits

__all__ = ["assert_seconds", "check"]

LONGEST = 2.0**31
GREATEST = 1e18


def check(said: ServerLimits) -> None:
    top = Policy(None, said.limit, said.window, said.remaining, said.reset_after)
    for policy in (top, *said.policies):
        for count in (policy.quota, policy.remaining):
            assert count is None or 0 <= count <= GREATEST, policy
        assert_seconds(policy.reset_after)
        assert_seconds(policy.window)
        assert policy.window is None or policy.window > 0, policy
    assert_seconds(said.retry_after)
    assert isinstance(said.throttled, bool)
    for word in (said.scope, said.reason):
        assert word is None or 0 < len(word) <= 64


def assert_seconds(seconds: float | None) -> None:
    # A NaN fails too: it lies in no interval.
    assert seconds is None or (isinstance(seconds, float) and 0.0 <= seconds <= LONGEST), seconds
