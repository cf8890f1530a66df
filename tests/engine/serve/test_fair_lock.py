"""FairLock: first come, first served; its owner may take it again; a thread that gives up leaves no gap."""

import threading

import pytest

from minikv.engine.serve.fair_lock import FairLock


def ask(lock, order, number):
    """A thread that waits for its turn, behind everybody who has asked so far."""
    before = len(lock._queue)

    def wait():
        with lock:
            order.append(number)

    thread = threading.Thread(target=wait)
    thread.start()
    while len(lock._queue) == before:
        pass
    return thread


def test_the_order_is_that_of_asking():
    lock, order = FairLock(), []
    with lock:
        threads = [ask(lock, order, number) for number in range(12)]
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == list(range(12))


def test_a_thread_may_ask_again_and_keeps_its_turn_until_the_last_exit():
    lock, order = FairLock(), []
    with lock:
        with lock, lock:
            thread = ask(lock, order, 1)
        assert order == []
        order.append(0)
    thread.join(60)
    assert order == [0, 1]


def test_whoever_gives_up_leaves_no_gap(monkeypatch):
    lock, order = FairLock(), []
    with lock, monkeypatch.context() as patch:

        def interrupted(ready):
            raise KeyboardInterrupt

        def give_up():
            with pytest.raises(KeyboardInterrupt):
                lock.__enter__()
            order.append("gave up")

        patch.setattr(lock._changed, "wait_for", interrupted)
        thread = threading.Thread(target=give_up)
        thread.start()
        thread.join(60)
        patch.undo()
        assert not lock._queue
        waiting = ask(lock, order, 1)
    waiting.join(60)
    assert order == ["gave up", 1]


def test_an_exception_gives_the_turn_back():
    lock, order = FairLock(), []
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with lock:
        thread = ask(lock, order, 1)
    thread.join(60)
    assert order == [1]
