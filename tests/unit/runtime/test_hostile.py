"""Programs that damage their own interpreter: each hurts only itself, and its answer comes all the same."""

import pytest

from attacks import FATAL, HARMLESS
from driver import function, module, program, returns, run

ANSWER_SECONDS = 10.0  # against hanging, also on a busy machine


def check(slot, attack, where):
    body = "".join("    %s\n" % line for line in attack.strip().split("\n"))
    if where == "function":
        source = "def attack():\n" + body + "    return 7\ndef after():\n    return ['x', 2 ** 100, {'k': 1.5}, b'z']\n"
        first = [module(source)]
    else:
        source = attack + "\ndef attack():\n    return 7\ndef after():\n    return ['x', 2 ** 100, {'k': 1.5}, b'z']\n"
        first = [module(source)]
    outcome = slot.run(
        [
            *first,
            function("attack"),
            function("after"),
            run("attack", id="a"),
            returns("a", "a"),
            run("after", id="b"),
            returns("b", "b"),
            {"op": "return", "key": "none", "kind": "file", "path": "missing"},
        ]
    )
    assert outcome.seconds < ANSWER_SECONDS
    return outcome


@pytest.mark.parametrize("where", ["function", "module"])
@pytest.mark.parametrize("name", HARMLESS)
def test_the_true_answer_comes(slot, name, where):
    outcome = check(slot, HARMLESS[name], where)
    # The last return fails on purpose: errors must still be made, too.
    assert outcome.error and outcome.error["index"] == 7 and outcome.error["kind"] == "serialization", outcome.error
    assert outcome.returned["a"].wire == {"type": "integer", "value": 7}
    assert outcome.returned["b"].wire["value"][1] == {"type": "integer", "value": 2**100}
    assert outcome.returned["b"].parts == [b"z"]


@pytest.mark.parametrize("name", HARMLESS)
def test_the_true_error_comes(slot, name):
    outcome = slot.run(program(HARMLESS[name] + "\ndef f():\n    1 / 0\n"))
    assert outcome.error["kind"] == "runtime" and outcome.error["message"] == "division by zero", outcome.error
    assert "1 / 0" in outcome.error["traceback"] and outcome.error["traceback"].endswith(
        "ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize("name", FATAL)
def test_some_answer_comes(slot, name):
    outcome = check(slot, FATAL[name], "function")
    assert outcome.error or outcome.died
    # The next program knows nothing of it.
    assert slot.run(program("def f(): return 1\n")).completed


def test_the_settings_of_a_program_last_between_its_instructions(slot):
    source = """
import gc, signal, sys
events = []
def tracer(frame, event, arg): events.append(frame.f_code.co_name)
def first():
    sys.setrecursionlimit(4321); gc.disable(); sys.settrace(tracer)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def second():
    sys.settrace(None)
    blocked = [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    return [sys.getrecursionlimit(), gc.isenabled(), blocked, events.count("second"), len(set(events)) <= 3]
"""
    outcome = slot.run(
        [module(source), function("first"), function("second"), run("first", id="a"), run("second"), returns()]
    )
    values = outcome.returned["result"].wire["value"]
    assert [each["value"] for each in values[:2]] == [4321, False] and values[2]["value"] == [
        {"type": "integer", "value": 10}
    ]
    assert values[3]["value"] == 1 and values[4]["value"]


def test_uploaded_code_has_the_programs_builtins(slot):
    source = """
import builtins
builtins.mine = 41
def f():
    builtins.len = lambda x: 1
    return mine + len([])
"""
    assert slot.run(program(source)).returned["result"].wire["value"] == 42


def test_a_value_that_keeps_growing_is_bounded(slot):
    source = "def f():\n    x = [0]\n    for _ in range(100): x = [x, x]\n    return x\n"
    ours = slot.run(program(source), killed_after=lambda outcome: outcome.types.count("started") == 4)
    assert ours.exit["signal"] == 9


def test_an_exception_in_a_loop_of_causes(slot):
    source = """
class Loop(Exception):
    __cause__ = property(lambda self: self)
    __traceback__ = property(lambda self: 1 / 0)
def f():
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    raise a
def g():
    raise Loop("loop")
"""
    assert slot.run(program(source)).error["traceback"].endswith("ValueError: a\n")
    error = slot.run([module(source), function("g"), run("g")]).error
    assert error["message"] == "loop" and "raise Loop" in error["traceback"]
