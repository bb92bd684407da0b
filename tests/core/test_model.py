"""The models of docs/project/model: they hold, and each part of the design is needed."""

from dataclasses import fields, replace

import pytest

from docs.project.model import line, shared
from docs.project.model.check import BrokenError, Step, check


def test_the_model_of_the_queue_holds() -> None:
    assert check(line.Line(), line.steps(line.Design()), line.wrong, line.served) > 1000


def test_the_model_of_the_shared_limit_holds() -> None:
    assert (
        check(shared.World(), shared.steps(shared.Design()), shared.wrong, shared.served) > 10_000
    )


@pytest.mark.parametrize("part", [field.name for field in fields(line.Design)])
def test_each_part_of_the_queue_is_needed(part: str) -> None:
    poorer = replace(line.Design(), **{part: False})
    with pytest.raises(BrokenError) as broken:
        check(line.Line(), line.steps(poorer), line.wrong, line.served)
    assert broken.value.trace


@pytest.mark.parametrize("part", [field.name for field in fields(shared.Design)])
def test_each_part_of_the_shared_limit_is_needed(part: str) -> None:
    poorer = replace(shared.Design(), **{part: False})
    with pytest.raises(BrokenError) as broken:
        check(shared.World(), shared.steps(poorer), shared.wrong, shared.served)
    assert broken.value.trace


# ---- the checker itself: numbers that are counted up to a few ------------------------------------


def count(number: int) -> list[Step[int]]:
    return [Step("one more", number + 1, progress=True)] if number < 3 else []


def nothing(_: int) -> None:
    return None


def test_all_states_are_seen() -> None:
    assert check(0, count, nothing, lambda number: number == 3) == 4


def test_broken_state_is_reported_with_its_steps() -> None:
    with pytest.raises(BrokenError, match="too many, after: one more, one more"):
        check(0, count, lambda number: "too many" if number == 2 else None, lambda _: True)


def test_final_state_with_a_waiter_is_found() -> None:
    with pytest.raises(BrokenError, match="somebody waits for ever"):
        check(0, count, nothing, lambda number: number == 4)


def test_steps_of_the_environment_alone_serve_nobody() -> None:
    def steps(number: int) -> list[Step[int]]:
        return [step._replace(progress=False) for step in count(number)]

    with pytest.raises(BrokenError, match="somebody waits for ever, after: nothing"):
        check(0, steps, nothing, lambda number: number == 3)


def test_cycle_of_states_is_found() -> None:
    def steps(number: int) -> list[Step[int]]:
        return [Step("on", (number + 1) % 3, progress=True)]

    with pytest.raises(BrokenError, match="it goes in a circle"):
        check(0, steps, nothing, lambda _: True)
