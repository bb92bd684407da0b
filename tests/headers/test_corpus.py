"""Responses of real servers give the limits that the corpus expects: tests/corpus/README.md."""

import json
import math
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from aiothrottle.headers import ServerLimits, parse_http_date, parse_rate_limit, profile_for
from tests.support.reading import NOW

Case: TypeAlias = dict[str, Any]

CORPUS = Path(__file__).parents[1] / "corpus"
POLICY = ("name", "quota", "window", "remaining", "reset_after")
# A field that a case omits must not be found.
NOTHING: dict[str, Any] = ServerLimits()._asdict() | {"policies": []}
REPORTED = ("throttled", "retry_after", "limit", "remaining", "reset_after", "window", "policies")


def cases(file: str) -> list[Case]:
    read: list[Case] = json.loads((CORPUS / file).read_text(encoding="utf-8"))
    for case in read:
        case["expect"] = {key: NOTHING[key] for key in REPORTED} | case["expect"]
        for policy in case["expect"]["policies"]:
            policy.update(dict.fromkeys(POLICY) | policy)
    return read


GIVEN = cases("rate_limit_headers.json")
CASES = GIVEN + cases("more_headers.json") + cases("second_headers.json")


def parse(case: Case) -> ServerLimits:
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
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=0, abs_tol=0.001)
    return found == wanted


def same(found: Case, wanted: Case) -> bool:
    """Each key that is wanted; policies in any order."""
    if "policies" in wanted:
        pairs = [[same(one, two) for two in wanted["policies"]] for one in found["policies"]]
        each = all(map(any, pairs)) and all(map(any, zip(*pairs, strict=True)))
        if len(pairs) != len(wanted["policies"]) or not each:
            return False
    return all(agrees(found[key], wanted[key]) for key in wanted if key != "policies")


def reported(limits: ServerLimits) -> dict[str, Any]:
    return limits._asdict() | {"policies": [policy._asdict() for policy in limits.policies]}


def test_corpus_responses_give_their_expected_limits() -> None:
    wrong: dict[str, object] = {}
    for case in CASES:
        found = reported(parse(case))
        others: list[dict[str, Any]] = [{}, *case.get("alt_expect", [])]
        readings = [case["expect"] | other for other in others]
        if not any(same(found, reading) for reading in readings):
            wrong[case["id"]] = found
    assert wrong == {}


def changed(change: Callable[[Case], list[Case]]) -> list[str]:
    """Return the responses that are read differently after the change."""
    return [
        case["id"]
        for case in CASES
        for other in change(case)
        if not same(reported(parse(other)), reported(parse(case)))
    ]


def test_order_case_clock_and_other_headers_do_not_matter() -> None:
    def disorder(case: Case) -> list[Case]:
        chance = random.Random(case["id"])
        lines = [
            (chance.choice([str.upper, str.swapcase])(name), f" {text}\t")
            for name, text in case["headers"]
        ]
        chance.shuffle(lines)
        return [{**case, "headers": lines}]

    assert changed(disorder) == []

    def shift_clock(case: Case) -> list[Case]:
        dates = [text for name, text in case["headers"] if name.lower() == "date"]
        if len(dates) != 1 or not parse_http_date(dates[0]):
            return []
        now = datetime.fromisoformat(case["now"])
        return [{**case, "now": str(now + timedelta(hours=h))} for h in (-9600, 1, 9600)]

    assert changed(shift_clock) == []
    others = [["X-Limit", "3"], ["Remaining", "0"], ["Reset", "5"], ["X-RateLimit-Note", "7"]]
    assert changed(lambda case: [{**case, "headers": [*others, *case["headers"], *others]}]) == []


def test_profile_may_be_named_by_vendor_or_host() -> None:
    for vendor in ("Discord", "discord.com", "DISCORD", "nobody.example"):
        for case in CASES:
            arguments = case["status"], case["headers"], NOW, case.get("body")
            found = parse_rate_limit(*arguments, profile=vendor)
            assert found == parse_rate_limit(*arguments, profile=profile_for(vendor))


def test_corpus_is_complete() -> None:
    assert len(GIVEN) == 237
    assert len(CASES) == len({case["id"] for case in CASES})


def by_unit(limits: ServerLimits) -> dict[str, list[float | None]]:
    found = limits.by_unit.items()
    return {unit: [each.quota, each.remaining, each.reset_after] for unit, each in found}


def test_corpus_responses_have_their_limits_by_unit() -> None:
    found = {case["id"]: parse(case) for case in CASES}
    wanted = {case["id"]: case["by_unit"] for case in CASES if "by_unit" in case}
    assert len(wanted) == 11
    for name, units in wanted.items():
        assert by_unit(found[name]).keys() == units.keys(), name
        for unit, numbers in by_unit(found[name]).items():
            assert all(map(agrees, numbers, units[unit])), name
    for name, limits in found.items():
        bound = [limits.limit, limits.remaining, limits.reset_after]
        if bound != [None, None, None]:
            assert by_unit(limits)[limits.unit or "requests"] == bound, name
