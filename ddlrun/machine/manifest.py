"""Manifests of saved probe replies: the size of each file in a folder, and an end mark."""

import re
from collections.abc import Iterator, Mapping

from ddlrun.errors import InputError
from ddlrun.wording import counted

MANIFEST = "manifest.txt"
_TITLE = "# Lines and characters of the files that ddlrun probe --save wrote into this folder"
_FILE = r"(?m)^([^# ]\S*) (\d+) (\d+)$"


def render_manifest(texts: Mapping[str, str]) -> str:
    r"""Return the manifest of files: a line per file, and their number.

    >>> print(render_manifest({"uname.txt": "Linux n1\n"}), end="")
    # Lines and characters of the files that ddlrun probe --save wrote into this folder
    uname.txt 1 9
    end 1
    """
    sizes = (f"{name} {_size(text)}" for name, text in texts.items())
    return "\n".join((_TITLE, *sizes, f"end {len(texts)}", ""))


def check_manifest(manifest: str, texts: Mapping[str, str], folder: str) -> None:
    """Raise InputError with every file of `folder` that is missing or differs in size from its manifest."""
    sizes = {name: f"{lines} {characters}" for name, lines, characters in re.findall(_FILE, manifest)}
    if manifest.splitlines()[-1:] != [f"end {len(sizes)}"]:
        raise InputError(f"{folder}/{MANIFEST}: it is cut off; save the replies again")
    problems = tuple(_differences(sizes, texts, folder))
    if problems:
        raise InputError(*problems)


def _differences(sizes: Mapping[str, str], texts: Mapping[str, str], folder: str) -> Iterator[str]:
    for name, saved in sizes.items():
        present = _size(texts[name]) if name in texts else "0 0"
        if present != saved:
            yield (
                f"{folder}/{name}: {_in_words(present)}, but {_in_words(saved)} were saved; save the replies again, "
                f"or delete {MANIFEST} if the change is yours"
            )


def _in_words(size: str) -> str:
    lines, characters = map(int, size.split())
    return f"{counted(lines, 'line')} of {counted(characters, 'character')}"


def _size(text: str) -> str:
    text = text.replace("\r\n", "\n")  # as when it is read
    return f"{text.count(chr(10))} {len(text)}"
