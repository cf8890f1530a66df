"""Turns: first come, first served; whoever has the turn may ask again; whoever gives up leaves no gap."""

import threading

import pytest

from minikv.engine.turns import Turns


def ask(turns, order, number):
    """A thread that waits for its turn, behind everybody who has asked so far."""
    before = len(turns._queue)

    def wait():
        with turns:
            order.append(number)

    thread = threading.Thread(target=wait)
    thread.start()
    while len(turns._queue) == before:
        pass
    return thread


def test_the_order_is_that_of_asking():
    turns, order = Turns(), []
    with turns:
        threads = [ask(turns, order, number) for number in range(12)]
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == list(range(12))


def test_a_thread_may_ask_again_and_keeps_its_turn_until_the_last_exit():
    turns, order = Turns(), []
    with turns:
        with turns, turns:
            thread = ask(turns, order, 1)
        assert order == []
        order.append(0)
    thread.join(60)
    assert order == [0, 1]


def test_whoever_gives_up_leaves_no_gap(monkeypatch):
    turns, order = Turns(), []
    with turns, monkeypatch.context() as patch:

        def interrupted(ready):
            raise KeyboardInterrupt

        def give_up():
            with pytest.raises(KeyboardInterrupt):
                turns.__enter__()
            order.append("gave up")

        patch.setattr(turns._changed, "wait_for", interrupted)
        thread = threading.Thread(target=give_up)
        thread.start()
        thread.join(60)
        patch.undo()
        assert not turns._queue
        waiting = ask(turns, order, 1)
    waiting.join(60)
    assert order == ["gave up", 1]


def test_an_exception_gives_the_turn_back():
    turns, order = Turns(), []
    with pytest.raises(ZeroDivisionError), turns:
        raise ZeroDivisionError
    with turns:
        thread = ask(turns, order, 1)
    thread.join(60)
    assert order == [1]
