"""check: an answer, an error or an argument that is made to escape or to fool it gets a verdict like any other.

Each of these runs its own code where a check would compare it, print it or say what was raised.
"""

import itertools
import signal
import sys

import pytest

from minikv.course import run_check, start
from minikv.course.compare import difference
from tests.course.sample import BLOCKS, said
from tests.course.sample import blocks_needed as right
from tests.in_turn import in_turn

pytestmark = pytest.mark.usefixtures("lesson_99")


class Interrupts(KeyboardInterrupt):
    """Not Ctrl-C, which Python raises as KeyboardInterrupt itself."""


def leave(*_):
    sys.exit("out")


def interrupt(*_):
    raise Interrupts


def spin(*_):
    while True:
        pass


WAYS = [leave, interrupt, spin]


def kind_of(base, **methods):
    """A class that runs these methods of the learner's."""
    return type("Mine", (base,), methods)


@pytest.mark.parametrize("way", WAYS)
@in_turn("method", ["__repr__", "__eq__", "__getattr__", "__getattribute__", "__hash__"])
@in_turn("base", [object, int, list])
def test_an_answer_that_does_not_want_to_be_looked_at_is_wrong(way, method, base, capsys):
    answer = kind_of(base, **{method: way})()
    if method == "__repr__" and base is int:
        answer = kind_of(int, **{method: way})(10**6)  # the right type, so that the value has to be shown
    out = said(capsys, lambda lengths, block_size: answer)
    assert "99.1" in out
    assert "passed" not in out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", [Exception, SystemExit, BaseException])
def test_an_error_that_does_not_say_what_it_is(way, base, capsys):
    hostile = kind_of(base, __str__=way, __traceback__=property(way))

    def raises(lengths, block_size):
        raise hostile

    out = said(capsys, raises)
    assert "99.1" in out
    assert "Mine" in out or "no answer within" in out


@pytest.mark.parametrize("way", WAYS)
def test_an_argument_that_cannot_be_compared_was_changed(way):
    hostile = kind_of(int, __index__=way, __int__=way, __getattribute__=way)

    def changes(lengths, block_size):
        blocks = right(lengths, block_size)
        lengths[0] = hostile(10**6)
        return blocks

    assert run_check(BLOCKS, changes).kind in ("mutated", "timed_out")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attribute", ["__signature__", "__name__", "__code__", "__wrapped__"])
def test_a_callable_that_does_not_want_to_be_asked(way, attribute, capsys):
    def call(self, lengths, block_size):
        return right(lengths, block_size)

    fn = kind_of(object, __call__=call, **{attribute: property(way)})()
    assert "passed" in said(capsys, fn)


@pytest.mark.parametrize("base", [int, float, str, bytes])
def test_what_says_that_it_is_equal_to_everything_is_not_the_answer(base):
    yes = {
        "__eq__": lambda self, other: True,
        "__ne__": lambda self, other: False,
        "__hash__": lambda self: 0,
    }
    convert = {"__int__": lambda self: 7, "__index__": lambda self: 7, "__float__": lambda self: 7.0}
    fooling = kind_of(base, **yes, **convert)
    expected, got = {int: (7, 8), float: (7.0, 8.0), str: ("7", "8"), bytes: (b"7", b"8")}[base]
    assert difference(expected, fooling(got)) == "value"
    assert difference([expected], [fooling(got)]) == "value"
    assert difference({"a": expected}, {"a": fooling(got)}) == "value"
    assert difference(expected, fooling(expected)) is None


def test_what_only_calls_itself_a_bool_is_none():
    fooling = type("bool_", (), {"__eq__": lambda self, other: True})
    assert difference(True, fooling()) == "type"


def ignores(lengths, block_size):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    spin()


def stops(lengths, block_size):
    signal.setitimer(signal.ITIMER_REAL, 0)
    spin()


def stops_and_swallows(lengths, block_size):
    signal.alarm(0)
    while True:
        try:
            spin()
        except:  # noqa: E722
            continue


@pytest.mark.parametrize("fn", [ignores, stops, stops_and_swallows])
def test_a_function_that_silences_the_timer_is_stopped_all_the_same(fn):
    before = signal.getsignal(signal.SIGALRM)
    assert run_check(BLOCKS, fn).kind == "timed_out"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_is_printed_is_short_and_no_terminal_obeys_it(lang, capsys):
    attack = "\x1b[2J\x9b\u202e\ud800" + "x" * 100_000
    shows = kind_of(object, __repr__=lambda self: attack)()

    def raises(lengths, block_size):
        raise ValueError(attack)

    def prints(lengths, block_size):
        print(attack)
        return shows

    for fn in (raises, prints):
        out = said(capsys, fn, lang=lang)
        assert len(out) < 5000
        assert "\\x1b[2J\\x9b\\u202e\\ud800xxx" in out
        assert not {"\x1b", "\x9b", "\u202e", "\ud800"} & set(out)


@pytest.mark.parametrize("way", WAYS)
def test_a_guess_that_does_not_want_to_be_read_is_no_number(way, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["minikv.course.predict"], "_LIMIT_S", 0.2)
    predict = start("99").predict
    for base, method in itertools.product((int, float, object), ("__eq__", "__float__", "__getattribute__")):
        predict("one_token", kind_of(base, **{method: way})())
        assert "The answer" in capsys.readouterr().out or base is object
    predict("one_token", kind_of(int, __eq__=lambda self, other: True)(1))
    assert "Right" not in capsys.readouterr().out


def test_a_guess_beyond_every_float_is_no_number(capsys):
    start("99").predict("one_token", 10**5000)
    assert "no number (int inf)" in capsys.readouterr().out


def test_a_hint_level_that_equals_a_level_is_that_level(capsys):
    assert "hint 2" in said(capsys, lambda lengths, block_size: -1, hint=2.0)
