"""Signals wait for the end of what cannot be left half done."""

import signal
import threading

import pytest

from neuralef.training import SIGNALS, Held

each_signal = pytest.mark.parametrize("number", SIGNALS)


class Struck(Exception):  # noqa: N818
    """What the handler of a program raises."""


@pytest.fixture
def handlers():
    """Handlers of the program's own, which say that a signal came through."""

    def strike(number, frame):
        raise Struck(number)

    before = {number: signal.signal(number, strike) for number in SIGNALS}
    yield strike
    for number, handler in before.items():
        signal.signal(number, handler)


@each_signal
def test_a_signal_comes_through_at_the_end_and_to_the_programs_own_handler(number, handlers):
    done = []

    def work():
        with Held() as signals:
            done.append(bool(signals))
            signal.raise_signal(number)
            done.append(bool(signals))

    with pytest.raises(Struck):
        work()
    assert done == [False, True]
    assert all(signal.getsignal(each) is handlers for each in SIGNALS)


@each_signal
def test_a_second_one_comes_through_at_once(number, handlers):
    done = []

    def work():
        with Held():
            for each in (signal.SIGTERM, number, number):
                signal.raise_signal(each)
                done.append(each)

    with pytest.raises(Struck):
        work()
    assert done == [signal.SIGTERM]
    assert all(signal.getsignal(each) is handlers for each in SIGNALS)


@each_signal
def test_a_handler_that_returns_lets_the_work_go_on(number):
    came, done = [], []
    before = signal.signal(number, lambda *given: came.append(given[0]))
    with Held() as signals:
        for step in range(5):
            if step in (1, 3):
                signal.raise_signal(number)
            assert len(came) == len([each for each in done if each in (1, 3)])
            done.append(step)
            signals.deliver()
            assert not signals
    assert signal.signal(number, before) is not before
    assert (came, done) == ([number, number], [0, 1, 2, 3, 4])


def test_without_a_signal_nothing_is_changed(handlers):
    with Held() as signals:
        assert not signals
    assert all(signal.getsignal(each) is handlers for each in SIGNALS)


def test_errors_leave_the_handlers_as_they_were(handlers):
    with pytest.raises(ZeroDivisionError), Held():
        raise ZeroDivisionError
    assert all(signal.getsignal(each) is handlers for each in SIGNALS)


@each_signal
def test_nothing_is_held_unless_wanted(number, handlers):
    def work():
        with Held(wanted=False):
            signal.raise_signal(number)
            pytest.fail("it is not held")

    with pytest.raises(Struck):
        work()


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Held() as signals:
        signal.raise_signal(signal.SIGTERM)
        assert not signals
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN


def test_other_threads_hold_nothing_and_do_not_fail():
    found = []

    def work():
        with Held() as signals:
            found.append(bool(signals))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
