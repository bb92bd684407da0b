"""The semaphore: a slot is free or taken; more are taken than there are only after a cut."""

import pytest

from aiothrottle._core.semaphore import NO_LIMIT, Semaphore


def take(semaphore: Semaphore, count: int) -> None:
    semaphore.taken += count


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_limit_is_the_number_of_free_slots(limit: int) -> None:
    semaphore = Semaphore(limit)
    assert (semaphore.limit, semaphore.free) == (limit, limit)


def test_taken_slots_are_not_free() -> None:
    semaphore = Semaphore(3)
    take(semaphore, 2)
    assert semaphore.free == 1
    semaphore.taken -= 1
    assert semaphore.free == 2


def test_without_a_limit_slots_do_not_run_out() -> None:
    semaphore = Semaphore(None)
    take(semaphore, 1_000_000)
    assert semaphore.limit is None
    assert semaphore.free == NO_LIMIT - 1_000_000 > 1_000_000


def test_lowered_limit_frees_none_until_enough_are_released() -> None:
    semaphore = Semaphore(3)
    take(semaphore, 3)
    semaphore.resize(1)
    free: list[int] = []
    while semaphore.taken:
        free.append(semaphore.free)
        semaphore.taken -= 1
    assert [*free, semaphore.free] == [0, 0, 0, 1]


@pytest.mark.parametrize("limit", [5, 0, None])
def test_resize_leaves_taken_slots_taken(limit: int | None) -> None:
    semaphore = Semaphore(2)
    take(semaphore, 2)
    semaphore.resize(limit)
    assert (semaphore.limit, semaphore.taken) == (limit, 2)


def test_raised_limit_frees_the_difference() -> None:
    semaphore = Semaphore(2)
    take(semaphore, 2)
    semaphore.resize(5)
    assert semaphore.free == 3


def test_removed_limit_can_be_set_again() -> None:
    semaphore = Semaphore(2)
    semaphore.resize(None)
    semaphore.resize(4)
    assert (semaphore.limit, semaphore.free) == (4, 4)


def test_nobody_watches_a_new_semaphore() -> None:
    assert not Semaphore(1).watched
