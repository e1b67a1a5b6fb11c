"""Errors that the user can fix, and the exit codes of ddlrun."""

EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_PLACEMENT = 4
EXIT_PREFLIGHT = 5
EXIT_STALLED = 123
EXIT_TIMED_OUT = 124
# A process that signal N ended has the exit code 128 + N, as in a shell.
EXIT_SIGNAL = 128
MOST_SIGNAL = 64
EXIT_INTERRUPTED, EXIT_KILLED, EXIT_TERMINATED = 130, 137, 143

# With --exit-code-base N, ddlrun's own codes up to EXIT_PREFLIGHT are N + code, and the others these above N.
AFTER_TIME_LIMIT, AFTER_SIGNAL, OTHERWISE = 6, 7, 8


def shift_own_code(code: int, base: int) -> int:
    """Return one of ddlrun's own exit codes with --exit-code-base; 0 stays.

    >>> shift_own_code(2, 200), shift_own_code(124, 200), shift_own_code(130, 200), shift_own_code(2, 0)
    (202, 206, 207, 2)
    """
    if not base or not code:
        return code
    if code <= EXIT_PREFLIGHT:
        return base + code
    if code == EXIT_TIMED_OUT:
        return base + AFTER_TIME_LIMIT
    by_signal = EXIT_SIGNAL < code <= EXIT_SIGNAL + MOST_SIGNAL
    return base + (AFTER_SIGNAL if by_signal else OTHERWISE)


class DdlrunError(Exception):
    """A problem that the user can fix; printed as one line per problem, without a traceback.

    Takes all problems of one input, so that the user sees them at the first try.
    """

    exit_code = 1

    def __init__(self, *problems: str) -> None:
        """Keep the problems; each is one line: what is wrong, the value quoted, where it stands, the remedy."""
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(DdlrunError):
    """The command line, a file or an environment variable is wrong."""

    exit_code = EXIT_BAD_INPUT


class UnreachableError(DdlrunError):
    """A host cannot be reached or probed."""

    exit_code = EXIT_UNREACHABLE


class HostError(UnreachableError):
    """A problem of one host, which callers that list several hosts print without its name."""

    def __init__(self, host: str, problem: str) -> None:
        """Keep the host's name apart from its problem."""
        super().__init__(f"host {host}: {problem}")
        self.host = host
        self.problem = problem


class PlacementError(DdlrunError):
    """The ranks do not fit on the machines, or a rank file cannot express their placement."""

    exit_code = EXIT_PLACEMENT


class PreflightError(DdlrunError):
    """Something that the launch needs is missing or wrong."""

    exit_code = EXIT_PREFLIGHT


class LostRankError(DdlrunError):
    """A rank has ended while others wait for it, or cannot be reached, or one of its calls was interrupted."""
