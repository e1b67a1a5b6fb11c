"""The states of a keeper, and their transitions.

The exit code is 0 under a process manager that would kill the other keepers after a failure, which would leave
processes of their programs behind; it is the program's where an agent is the parent.

An order to end is a TERMINATE message, a signal that ends processes, or the loss of the connection; that loss counts
once more when the end was reported.

Deadlines in every state (see escalation.py and connection.py):

- SIGKILL to all descendants when the grace of an order is over, and again every 0.2 s.
- After a program's end: SIGTERM to what it left behind in 1 s and SIGKILL in 2 s; if the end was ordered,
  SIGTERM at once and SIGKILL when the grace is over.
- Loss of the connection after the heartbeat's seconds without a message.
"""


class State:
    """The states of the keeper. The module enum takes 3 ms to import."""

    RUNNING = "passes output on"
    TERMINATING = "has sent SIGTERM"
    EXITING = "has sent SIGTERM to a program that was ending without an order"
    DRAINING = "passes on the rest of the output, and ends what the program left behind"
    CLEARING = "does the same after an order"
    REPORTING = "has sent the report of the end"
    SENDING = "waits until all is sent"
    LEAVING = "has closed its half of the connection"
    HANDING_OVER = "has sent HANDOVER"
    HANDED_OVER = "exits, and leaves a process behind (daemon.py)"
    OVER = "does the same; the job is over already"
    GONE = "exits"
    ALONE = "exits with 0, and on local rank 0 leaves a process behind"


class Event:
    """The events that change the state."""

    ORDER = "an order to end has come"
    LATE_ORDER = "an order to end has come when the kernel was already ending the program"
    END = "the program has ended"
    DRAINED = "no child and no pipe is left, or their time is over"
    LEAVE = "LEAVE has come, or need not come as the program has succeeded"
    SENT = "nothing waits to be sent"
    SENT_BESIDE_DAEMON = "nothing waits to be sent, on local rank 0 of a host with a daemon of the process manager"
    HANDED_OVER = "HANDED_OVER has come"
    OVER = "OVER has come"
    LOST = "the connection was lost, or ddlrun has closed it"


TRANSITIONS = {
    State.RUNNING: {Event.ORDER: State.TERMINATING, Event.LATE_ORDER: State.EXITING, Event.END: State.DRAINING},
    State.TERMINATING: {Event.END: State.CLEARING},
    State.EXITING: {Event.END: State.DRAINING},
    State.DRAINING: {Event.DRAINED: State.REPORTING},
    State.CLEARING: {Event.DRAINED: State.REPORTING},
    State.REPORTING: {Event.LEAVE: State.SENDING, Event.LOST: State.ALONE},
    State.SENDING: {
        Event.SENT: State.LEAVING, Event.LOST: State.ALONE, Event.SENT_BESIDE_DAEMON: State.HANDING_OVER,
    },
    State.LEAVING: {Event.LOST: State.GONE},
    State.HANDING_OVER: {Event.HANDED_OVER: State.HANDED_OVER, Event.LOST: State.ALONE},
    State.HANDED_OVER: {Event.OVER: State.OVER},
    State.OVER: {},
    State.GONE: {},
    State.ALONE: {},
}  # fmt: skip
"""State -> event -> next state; at any other event, the state stays."""
BEFORE_THE_END = (State.RUNNING, State.TERMINATING, State.EXITING)
UNREPORTED = (State.DRAINING, State.CLEARING)
"""The states between the program's end and its report."""
FINAL = (State.HANDED_OVER, State.OVER, State.GONE, State.ALONE)
"""The states in which the keeper exits."""


def next_state(state: str, event: str) -> str:
    """Return the state after an event."""
    return TRANSITIONS[state].get(event, state)
