"""Errors that the user can fix, and the exit codes of ddlrun."""

EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_PLACEMENT = 4
EXIT_PREFLIGHT = 5
EXIT_STALLED = 123
EXIT_TIMED_OUT = 124
# A process that signal N ended has the exit code 128 + N, as in a shell.
EXIT_SIGNAL = 128
EXIT_INTERRUPTED, EXIT_KILLED, EXIT_TERMINATED = 130, 137, 143


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
