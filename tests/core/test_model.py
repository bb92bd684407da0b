"""The models of docs/project/model: they hold, and each part of the design is needed."""

from dataclasses import fields, replace

import pytest

from docs.project.model import line, shared
from docs.project.model.check import BrokenError, check


def check_queue(design: line.Design) -> int:
    return check(line.Line(), line.steps(design), line.wrong, line.served)


def check_shared_limit(design: shared.Design) -> int:
    return check(shared.World(), shared.steps(design), shared.wrong, shared.served)


def test_model_of_the_queue_holds() -> None:
    assert check_queue(line.Design()) > 1000


def test_model_of_the_shared_limit_holds() -> None:
    assert check_shared_limit(shared.Design()) > 10_000


@pytest.mark.parametrize("part", [field.name for field in fields(line.Design)])
def test_each_part_of_the_queue_is_needed(part: str) -> None:
    with pytest.raises(BrokenError) as broken:
        check_queue(replace(line.Design(), **{part: False}))
    assert broken.value.trace


@pytest.mark.parametrize("part", [field.name for field in fields(shared.Design)])
def test_each_part_of_the_shared_limit_is_needed(part: str) -> None:
    with pytest.raises(BrokenError) as broken:
        check_shared_limit(replace(shared.Design(), **{part: False}))
    assert broken.value.trace
