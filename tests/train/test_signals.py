"""A first signal is remembered, a second one takes its ordinary effect."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from upweight.train.ranks import ALONE
from upweight.train.signals import HANDLED, GracefulStop, SamplingDropped


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_the_first_signal_is_only_remembered() -> None:
    """The step is finished; leaving raises what the signal stands for."""
    with GracefulStop() as stop:
        assert stop.received is None
        send(signal.SIGINT)
        assert stop.received is signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        stop.leave()


def test_sigterm_leaves_with_143() -> None:
    """128 + 15."""
    with GracefulStop() as stop:
        send(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        stop.leave()
    assert caught.value.code == 143


def test_the_second_signal_interrupts() -> None:
    """Someone is in a hurry."""

    def hurry() -> None:
        with GracefulStop():
            send(signal.SIGINT)
            send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        hurry()


def test_a_second_signal_of_the_other_kind_finds_its_handler_back() -> None:
    """SIGTERM after SIGINT goes where it went before."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with GracefulStop() as stop:
            send(signal.SIGINT)
            send(signal.SIGTERM)
        assert (stop.received, seen) == (signal.SIGINT, [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_handlers_are_back_afterwards() -> None:
    """Also where nothing came, and where the block raised."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with GracefulStop() as stop:
        assert signal.getsignal(signal.SIGINT) != before[0]
    with pytest.raises(RuntimeError), GracefulStop():
        raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    stop.leave()


def test_outside_the_main_thread_it_does_nothing() -> None:
    """Python allows no handlers there; a run in a thread works."""
    outcome: list[object] = []

    def work() -> None:
        with GracefulStop() as stop:
            outcome.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == [None]


def test_sampling_is_dropped_only_where_it_may_be() -> None:
    """The handshake samples too, and is finished."""
    with GracefulStop() as stop:
        with stop.dropping():
            stop.check()
        send(signal.SIGTERM)
        stop.check()
        with pytest.raises(SamplingDropped), stop.dropping():
            stop.check()
        stop.check()
        assert stop.asked()


def test_a_dropped_step_is_no_failure() -> None:
    """Nothing that catches what went wrong may swallow it."""
    assert not issubclass(SamplingDropped, Exception)


def ranks_of(*others: signal.Signals) -> Any:
    """Two or more ranks, of which the others have received these."""
    heard = [[float(number is one) for number in HANDLED] for one in others]
    return SimpleNamespace(world=1 + len(others), sum=lambda mine: mine + torch.tensor(heard).sum(dim=0))


@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_to_another_rank_stops_this_one_at_the_same_step(number: signal.Signals) -> None:
    """And it leaves as that one does."""
    with GracefulStop() as stop:
        assert not stop.agreed(ALONE)
        assert stop.agreed(ranks_of(number))
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        stop.leave()
    assert caught.type is (KeyboardInterrupt if number is signal.SIGINT else SystemExit)


def test_a_rank_keeps_the_signal_it_received_itself() -> None:
    """The others' does not replace it; with none anywhere, nobody stops."""
    with GracefulStop() as stop:
        assert not stop.agreed(SimpleNamespace(world=2, sum=lambda mine: mine))
        send(signal.SIGTERM)
        assert stop.agreed(ranks_of(signal.SIGINT, signal.SIGINT))
        assert stop.received is signal.SIGTERM
