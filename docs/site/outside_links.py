"""Links from the pages to files outside of docs/: a hook of mkdocs.

A forge opens such a link as a file of the repository. The site has no such file, so the hook copies it into the site,
under `repository/`, and changes the link. Links from a copied page back into docs/ are changed in the same way.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
COPIES = "repository"
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=(?:#[^)]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that the pages link to, and those that the added pages link to."""
    waiting = [(place(file.src_uri), file.content_string) for file in files.documentation_pages()]
    while waiting:
        source, text = waiting.pop()
        for target in targets(source, text):
            uri = address(target)
            if target.startswith("docs/") or uri in files.src_uris:
                continue
            path = str(ROOT / target)
            files.append(File.generated(config, uri, abs_src_path=path, inclusion=InclusionLevel.NOT_IN_NAV))
            if uri.endswith(".md"):
                waiting.append((target, Path(path).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_others: object) -> str:
    """Return a page's text with the addresses that these files have on the site."""
    source = place(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        target = resolve(source, match[1])
        return posixpath.relpath(address(target), folder) if target else match[1]

    return LINK.sub(on_site, markdown)


def targets(source: str, text: str) -> Iterator[str]:
    """Yield the files that a file's text links to, relative to the root of the repository."""
    for link in LINK.findall(text):
        if target := resolve(source, link):
            yield target


def resolve(source: str, link: str) -> str:
    """Return the file that a link in the file `source` means, or "" if there is none."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return target if not target.startswith("..") and (ROOT / target).is_file() else ""


def address(target: str) -> str:
    """Return the address on the site of a file of the repository."""
    return target.removeprefix("docs/") if target.startswith("docs/") else f"{COPIES}/{target}"


def place(address: str) -> str:
    """Return the file of the repository that has an address on the site: the inverse of `address`."""
    return address.removeprefix(f"{COPIES}/") if address.startswith(f"{COPIES}/") else f"docs/{address}"
