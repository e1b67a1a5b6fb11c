"""The states of a keeper: every state has an answer to every event."""

import itertools

import pytest

from ddlrun.keeper.keeper_state import BEFORE_THE_END, FINAL, TRANSITIONS, UNREPORTED, Event, State, next_state


def constants(cls: type) -> dict[str, str]:
    """Return the names and values of a class of constants."""
    return {name: value for name, value in vars(cls).items() if name.isupper()}


STATES, EVENTS = constants(State), constants(Event)


def test_every_state_has_an_answer_to_every_event() -> None:
    assert set(TRANSITIONS) == set(STATES.values())
    for state, event in itertools.product(STATES.values(), EVENTS.values()):
        assert next_state(state, event) in TRANSITIONS


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
