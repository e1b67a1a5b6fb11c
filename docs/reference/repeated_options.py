"""Options and paragraphs that several commands share, shown once in the command-line reference."""

import re
import textwrap
from collections.abc import Iterator

WIDTH = 78
# A heading, and the options below it, each with its help.
SECTION = re.compile(r"^([A-Z][\w ,-]*):\n((?: .*\n|\n(?= ))*)", re.MULTILINE)


class ShownOptions:
    """What the page has shown so far, each part with the command under which it stands."""

    def __init__(self) -> None:
        self._commands: dict[str, str] = {}

    def shorten(self, command: str, text: str) -> str:
        """Return a command's help without what stands under an earlier command; options are named."""
        found = SECTION.sub(lambda match: self._shorten_section(command, match[1], match[2]), f"{text}\n")
        paragraphs = re.split(r"\n{2,}", found.strip("\n"))
        new = (text for text in paragraphs if text[0] != " " or self._is_new(text, command))
        return "\n\n".join(new)

    def _is_new(self, text: str, command: str) -> bool:
        """Return True for a text that no earlier command has."""
        return self._commands.setdefault(normalise(text), command) == command

    def _shorten_section(self, command: str, heading: str, body: str) -> str:
        shown, named = list[str](), dict[str, list[str]]()
        for option in options(body):
            earlier = self._commands.setdefault(normalise(option), command)
            if earlier == command:
                shown.append(option)
            else:
                named.setdefault(earlier, []).append(last_name(option))
        lines = [fold(f"As for {earlier}: {', '.join(names)}.") for earlier, names in named.items()]
        return "".join([f"{heading}:\n", *shown, *lines]) if heading != "Other" or shown else ""


def options(body: str) -> Iterator[str]:
    """Yield the options of a section with their help; a section without options is one."""
    if not re.match(r"  -", body):
        yield body
        return
    yield from re.findall(r"^  -.*\n(?:^   .*\n)*", body, re.MULTILINE)


def normalise(option: str) -> str:
    """Return an option and its help, whatever their columns."""
    return " ".join(option.split())


def last_name(option: str) -> str:
    """Return the last name of an option, which is long if there is a long one."""
    return str(re.findall(r"(?:^|, )(--?[\w-]+)", option.strip().partition("  ")[0])[-1])


def fold(text: str) -> str:
    """Return a line as a paragraph of the help."""
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) + "\n"
