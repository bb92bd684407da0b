"""Specifies numbers and durations in messages: rounded, with units, without exponents."""

import ast
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiothrottle
from aiothrottle.texts import duration, number

PACKAGE = Path(aiothrottle.__file__).parent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0, "0 s"),
        (3e-9, "less than 0.001 ms"),
        (1e-6, "0.001 ms"),
        (0.0123456, "12.3 ms"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3594, "59 min 54 s"),
        (3599.6, "1 h"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (86399, "1 d"),
        (86400, "1 d"),
        (90000, "1 d 1 h"),
        (2678400, "31 d"),
        (1e7, "115 d 18 h"),
        (math.inf, "Infinity s"),
    ],
)
def test_duration_is_written_in_its_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


_SECONDS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}


@given(st.floats(1e-6, 1e12))
def test_duration_is_right_within_a_hundredth(seconds: float) -> None:
    parts = duration(seconds).split()
    read = sum(float(n) * _SECONDS[unit] for n, unit in zip(parts[::2], parts[1::2], strict=True))
    assert read == pytest.approx(seconds, rel=0.01)
    assert "e" not in duration(seconds)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (10, 12, "10"),
        (10.0, 12, "10"),
        (1e7, 12, "10000000"),
        (1e22, 12, "1" + 22 * "0"),
        (1e-7, 12, "0.0000001"),
        (0.1 + 0.2, 12, "0.3"),
        (2 / 3, 3, "0.667"),
        (1234567, 3, "1230000"),
        (-0.5, 12, "-0.5"),
    ],
)
def test_number_is_written_without_an_exponent(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_number_is_read_back_within_its_digits(value: float) -> None:
    text = number(value)
    assert "e" not in text.lower()
    assert float(text) == pytest.approx(value, rel=1e-11, abs=0)


def formats(source: str) -> list[str]:
    """Return the format of each value in an f-string, or in a text with %."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            parts = node.format_spec.values
            found += [str(part.value) for part in parts if isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += re.findall(r"%(\.\d+[eg])", node.value)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_only_texts_may_write_an_exponent(path: Path) -> None:
    """The format "g" writes 1e+07: other modules call `number` or `duration`."""
    source = path.read_text(encoding="utf-8")
    found = [each for each in formats(source) if each.endswith(("g", "e"))]
    assert found == (["g", "g"] if path.name == "texts.py" else [])
