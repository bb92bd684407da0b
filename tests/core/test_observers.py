"""The observers: listeners get each event, and when waits become a histogram."""

from aiothrottle._core.observers import Observers
from aiothrottle.events import Event, Listener, Rejected

FIRST, SECOND = Rejected("key", "no room"), Rejected("key", "timeout")


def test_new_and_last_removed_leave_no_listener() -> None:
    observers = Observers()
    assert not observers.listeners  # callers check this before they build an event
    listener = Listener(print)
    observers.add(listener)
    assert observers.listeners
    observers.remove(listener)
    assert not observers.listeners


def test_each_listener_gets_each_event_in_order() -> None:
    observers = Observers()
    seen = list[tuple[str, Event]]()
    observers.add(Listener(lambda event: seen.append(("a", event))))
    observers.add(Listener(lambda event: seen.append(("b", event))))
    observers.emit(FIRST)
    observers.emit(SECOND)
    assert seen == [("a", FIRST), ("b", FIRST), ("a", SECOND), ("b", SECOND)]


def test_removed_listener_gets_no_more_events() -> None:
    observers = Observers()
    kept, removed = list[Event](), list[Event]()
    listener = Listener(removed.append)
    observers.add(listener)
    observers.add(Listener(kept.append))
    observers.remove(listener)
    observers.remove(listener)  # a second time: there is none
    observers.emit(FIRST)
    assert (kept, removed) == ([FIRST], [])


def test_change_during_an_event_holds_from_the_next() -> None:
    observers = Observers()
    early, late = list[Event](), list[Event]()
    removed, added = Listener(early.append), Listener(late.append)

    def change(event: Event) -> None:
        if event is FIRST:
            observers.remove(removed)
            observers.add(added)

    observers.add(Listener(change))
    observers.add(removed)
    observers.emit(FIRST)
    observers.emit(SECOND)
    assert (early, late) == ([FIRST], [SECOND])


def test_few_waits_stay_unsorted() -> None:
    observers = Observers()
    observers.waits.recent += [1.0] * 511
    observers.tidy()
    assert (len(observers.waits.recent), observers.waits.count) == (511, 0)


def test_many_waits_enter_the_histogram_once() -> None:
    observers = Observers()
    observers.waits.recent += [1.0] * 512
    observers.tidy()
    observers.tidy()
    waits = observers.waits
    assert (waits.recent, waits.count, waits.total, waits.longest) == ([], 512, 512.0, 1.0)
