"""The models of docs/project/model: they hold, and each part of the design is needed."""

from dataclasses import fields, replace

import pytest

from docs.project.model import line, shared
from docs.project.model.check import BrokenError, check


def states(design: line.Design | shared.Design) -> int:
    if isinstance(design, line.Design):
        return check(line.Line(), line.steps(design), line.wrong, line.served)
    return check(shared.World(), shared.steps(design), shared.wrong, shared.served)


def test_models_of_the_queue_and_of_the_shared_limit_hold() -> None:
    assert states(line.Design()) > 1000
    assert states(shared.Design()) > 10_000


@pytest.mark.parametrize(
    "broken",
    [
        *(replace(line.Design(), **{part.name: False}) for part in fields(line.Design)),
        *(replace(shared.Design(), **{part.name: False}) for part in fields(shared.Design)),
    ],
    ids=str,
)
def test_each_part_of_the_design_is_needed(broken: line.Design | shared.Design) -> None:
    with pytest.raises(BrokenError) as found:
        states(broken)
    assert found.value.trace
