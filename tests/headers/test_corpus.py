"""Responses of real servers give the limits that the corpus expects: tests/corpus/README.md."""

import json
import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aiothrottle.headers import ServerLimits, parse_http_date, parse_rate_limit, profile_for

CORPUS = Path(__file__).parents[1] / "corpus"
POLICY = ("name", "quota", "window", "remaining", "reset_after")
# A field that a case omits must not be found.
NOTHING: dict[str, Any] = ServerLimits()._asdict() | {"policies": []}
REPORTED = ("throttled", "retry_after", "limit", "remaining", "reset_after", "window", "policies")


def cases(file: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads((CORPUS / file).read_text(encoding="utf-8"))
    for case in read:
        case["expect"] = {key: NOTHING[key] for key in REPORTED} | case["expect"]
        for policy in case["expect"]["policies"]:
            policy.update(dict.fromkeys(POLICY) | policy)
    return read


GIVEN = cases("rate_limit_headers.json")
CASES = GIVEN + cases("more_headers.json") + cases("second_headers.json")


def parse(case: dict[str, Any]) -> ServerLimits:
    requires = case["requires"]
    profile = None
    if "provider" in requires:
        profile = profile_for(case["provider"])
        assert profile, f"no profile of {case['provider']}"
    return parse_rate_limit(
        case["status"],
        [(name, value) for name, value in case["headers"]],
        datetime.fromisoformat(case["now"]),
        case.get("body") if "body" in requires else None,
        profile,
    )


def agrees(found: object, wanted: object) -> bool:
    """Numbers within a thousandth; policies in any order."""
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=0, abs_tol=0.001)
    return found == wanted


def same_policies(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    unmatched = list(wanted)
    for policy in found:
        for other in unmatched:
            if all(agrees(policy[key], other[key]) for key in POLICY):
                unmatched.remove(other)
                break
        else:
            return False
    return not unmatched


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(
        same_policies(found[key], value) if key == "policies" else agrees(found[key], value)
        for key, value in wanted.items()
    )


def reported(limits: ServerLimits) -> dict[str, Any]:
    fields = limits._asdict() | {"policies": [policy._asdict() for policy in limits.policies]}
    return {key: fields[key] for key in REPORTED}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_corpus_response_gives_its_expected_limits(case: dict[str, Any]) -> None:
    found = reported(parse(case))
    wanted: list[dict[str, Any]] = [case["expect"]]
    wanted += [{**case["expect"], **other} for other in case.get("alt_expect", [])]
    assert any(same(found, readings) for readings in wanted), found


def test_order_and_case_of_headers_do_not_matter() -> None:
    for case in CASES:
        chance = random.Random(case["id"])
        lines = [
            (chance.choice([str.upper, str.swapcase])(name), text) for name, text in case["headers"]
        ]
        chance.shuffle(lines)
        assert same(reported(parse({**case, "headers": lines})), reported(parse(case))), case["id"]


def test_local_clock_does_not_matter_with_a_date() -> None:
    for case in CASES:
        dates = [text for name, text in case["headers"] if name.lower() == "date"]
        if len(dates) == 1 and parse_http_date(dates[0]):
            for wrong in (timedelta(days=-400), timedelta(hours=1), timedelta(days=400)):
                now = (datetime.fromisoformat(case["now"]) + wrong).isoformat()
                assert same(reported(parse({**case, "now": now})), reported(parse(case))), case[
                    "id"
                ]


def test_other_headers_do_not_matter() -> None:
    others = [["X-Limit", "3"], ["Remaining", "0"], ["Reset", "5"], ["X-RateLimit-Note", "7"]]
    for case in CASES:
        lines = [*others, *case["headers"], *others]
        assert same(reported(parse({**case, "headers": lines})), reported(parse(case))), case["id"]


def test_corpus_is_complete() -> None:
    assert len(GIVEN) == 237
    assert len(CASES) == len({case["id"] for case in CASES})
