"""The states of a keeper.

An order to end is a TERMINATE message, a signal that ends processes, or the
loss of the connection.

===========  ======================================  ==========================================================
State        The keeper                              Next state
===========  ======================================  ==========================================================
RUNNING      passes output on                        On an order: TERMINATING, or EXITING if the kernel is
                                                     already ending the program. At its end: DRAINING.
TERMINATING  has sent SIGTERM                        At the program's end: DRAINING.
EXITING      has sent SIGTERM to a program that      At the program's end: DRAINING.
             was ending without an order
DRAINING     passes on the rest of the output and    When no child and no pipe is left, or 10 s after the last
             ends what the program left behind       deadline: REPORTING.
REPORTING    sends the report of the end             When all is sent and, unless the exit code is 0, LEAVE has
                                                     come: LEAVING. After a loss of the connection: GONE.
LEAVING      has closed its half of the connection   When ddlrun closes the other half, or on its loss: GONE.
             or, on local rank 0 of a host with a    On HANDED_OVER: GONE.
             daemon, has sent HANDOVER
GONE         exits with the program's exit code; with 0
             after a loss of the connection; on local
             rank 0 leaves a process behind (daemon.py)
===========  ======================================  ==========================================================

Deadlines in every state (see escalation.py and connection.py):

- SIGKILL to all descendants when the grace of an order is over, and again every 0.2 s.
- After a program's end: SIGTERM to what it left behind in 1 s and SIGKILL in 2 s; if the end was ordered,
  SIGTERM at once and SIGKILL when the grace is over.
- Loss of the connection after the heartbeat's seconds without a message.
"""


class State:
    """The states of the keeper: see the table above. The module enum takes 3 ms to import."""

    RUNNING = "running"
    EXITING = "exiting"
    TERMINATING = "terminating"
    DRAINING = "draining"
    REPORTING = "reporting"
    LEAVING = "leaving"
    GONE = "gone"


BEFORE_THE_END = (State.RUNNING, State.EXITING, State.TERMINATING)
