"""Errors that the user can fix, and the exit codes of ddlrun."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own is the same to a type checker
if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_PLACEMENT = 4
EXIT_PREFLIGHT = 5
EXIT_STALLED = 123
EXIT_TIMED_OUT = 124
# A process that signal N ended has the exit code 128 + N, as in a shell.
EXIT_SIGNAL = 128
EXIT_INTERRUPTED, EXIT_KILLED, EXIT_TERMINATED = 130, 137, 143


def spell_options(text: str, spell: Callable[[str], str] = str) -> str:
    """Return a problem with its options, which stand in backticks, spelled; by default as on the command line.

    >>> spell_options("`--rank-order` 5: no order"), spell_options("no `-m`", lambda name: f"<{name}>")
    ('--rank-order 5: no order', 'no <-m>')
    """
    import re  # noqa: PLC0415 - keepers import this module, and seldom print a problem

    return re.sub("`(--?[^`-][^`]*)`", lambda match: spell(match[1]), text)


class DdlrunError(Exception):
    """A problem that the user can fix; printed as one line per problem, without a traceback.

    Takes all problems of one input, so that the user sees them at the first try.
    """

    exit_code = 1

    def __init__(self, *problems: str) -> None:
        """Keep the problems; each is one line: what is wrong, the value quoted, where it stands, the remedy.

        Options of ddlrun launch stand in backticks: the command line and Python spell them in their own ways.
        """
        super().__init__("\n".join(problems))
        self.problems = problems

    def __str__(self) -> str:
        """Return the problems with options as on the command line."""
        return "\n".join(map(spell_options, self.problems))


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
