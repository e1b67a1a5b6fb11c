"""What can go wrong, one class a kind and one exit code a class."""


class DdlrunError(Exception):
    """A problem that the user can mend: shown as one line each, never as a traceback.

    Takes every problem of one input at once, so that all are seen at the first try.
    """

    exit_code = 1

    def __init__(self, *problems: str) -> None:
        """Keep the problems; each is one line: what, the value quoted, where, the remedy."""
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(DdlrunError):
    """The command line, a file or a variable is wrong."""

    exit_code = 2


class UnreachableError(DdlrunError):
    """A host cannot be reached or probed."""

    exit_code = 3


class PlacementError(DdlrunError):
    """The ranks do not fit on the machines, or a rank file cannot say where they go."""

    exit_code = 4


class PreflightError(DdlrunError):
    """Something that the launch needs is missing or wrong."""

    exit_code = 5
