"""The states of a keeper: every state has an answer to every event, in the code and in the page of the module."""

import itertools
import re

import pytest

from ddlrun.keeper import keeper_state
from ddlrun.keeper.keeper_state import BEFORE_THE_END, FINAL, TRANSITIONS, UNREPORTED, Event, State, next_state


def constants(cls: type) -> dict[str, str]:
    """Return the names and values of a class of constants."""
    return {name: value for name, value in vars(cls).items() if name.isupper()}


STATES, EVENTS = constants(State), constants(Event)


def documented() -> dict[tuple[str, str], str]:
    """Return (state, event) -> next state, as the table in the module's docstring has them."""
    _, table, _ = re.split(r"(?m)^=+  =+  =+\n(?!State)", (keeper_state.__doc__ or ""))
    rows: list[list[str]] = []
    for line in table.splitlines():
        name, _, rest = line.partition(" ")
        if name:
            rows.append([name, ""])
        rows[-1][1] += rest
    return {
        (STATES[name], EVENTS[event]): STATES[after]
        for name, text in rows
        for event, after in re.findall(r"([A-Z_]+) -> ([A-Z_]+)", text)
    }


def test_every_state_has_an_answer_to_every_event() -> None:
    assert set(TRANSITIONS) == set(STATES.values())
    for state, event in itertools.product(STATES.values(), EVENTS.values()):
        assert next_state(state, event) in TRANSITIONS


def test_the_docstring_has_the_transitions_of_the_code() -> None:
    pairs = itertools.product(STATES.values(), EVENTS.values())
    changes = {pair: next_state(*pair) for pair in pairs if next_state(*pair) != pair[0]}
    assert documented() == changes


def test_a_keeper_never_goes_back() -> None:
    order = [*TRANSITIONS]
    for state, event in itertools.product(STATES.values(), EVENTS.values()):
        assert order.index(next_state(state, event)) >= order.index(state)


@pytest.mark.parametrize("state", [state for state in TRANSITIONS if state not in FINAL])
def test_a_keeper_that_has_lost_ddlrun_gets_to_its_end(state: str) -> None:
    """Without any message, the end of the program and that of its children lead to the exit."""
    for event in (Event.LOST, Event.ORDER, Event.END, Event.DRAINED, Event.LOST):
        state = next_state(state, event)
    assert state in {State.ALONE, State.GONE}


@pytest.mark.parametrize("state", TRANSITIONS)
def test_only_the_end_of_the_program_ends_its_states(state: str) -> None:
    after = {event: next_state(state, event) for event in EVENTS.values()}
    if state in BEFORE_THE_END:
        assert {event for event, later in after.items() if later not in BEFORE_THE_END} == {Event.END}
    if state in UNREPORTED:
        assert {event for event, later in after.items() if later != state} == {Event.DRAINED}
    if state in FINAL:
        assert set(after.values()) <= set(FINAL)
