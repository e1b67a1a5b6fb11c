"""The documentation as a site: `make docs`."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from ddlrun import ddl
from tests.support import needs

pytestmark = pytest.mark.extra

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Where Markdown has two dialects, these elements show it: lists, code and tables that only one of them sees.
BLOCKS = ("ul", "ol", "li", "pre", "table", "tr", "h1", "h2", "h3", "h4", "img")
# Its entries come from docstrings.
GENERATED = "reference/python-api.md"
SOURCES = [path for path in sorted(DOCS.rglob("*.md")) if str(path.relative_to(DOCS)) != GENERATED]


class Page(HTMLParser):
    """The ids, links and loaded files of a page, and the number of each kind of element in its article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.blocks: Counter[str] = Counter()
        self._article = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._article |= tag == "article"
        if self._article and tag in BLOCKS:
            self.blocks[tag] += 1
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}:
            self.loads.append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        self._article &= tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("mkdocs", "material", "mkdocstrings"):
        needs.package(name, pip="'.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def built(site: Path, source: Path) -> Path:
    """Return the file of a page on the site."""
    place = site / source.relative_to(DOCS)
    return place.with_name("index.html") if source.name == "index.md" else place.with_suffix("") / "index.html"


def test_the_navigation_has_every_page(site: Path) -> None:
    home = (site / "index.html").read_text()
    navigation = home[home.index('class="md-nav md-nav--primary') : home.index('class="md-content"')]
    linked = set(Page(navigation).links)
    missing = [
        str(source) for source in DOCS.rglob("*.md")
        if source.name != "index.md" and f"{source.relative_to(DOCS).with_suffix('')}/" not in linked
    ]  # fmt: skip
    assert missing == []


def test_no_link_is_dead(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            target, fragment = follow(site, path, link)
            if target is None:
                continue
            lost = fragment and target in pages and fragment not in pages[target].ids
            if lost or not target.exists():
                dead.append((str(path.relative_to(site)), link))
    assert dead == []


def follow(site: Path, path: Path, link: str) -> tuple[Path | None, str]:
    """Return the file and the place in it that a link leads to; no file for a link to another server."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None, ""
    start = site if parts.path.startswith("/") else path.parent
    target = Path(os.path.normpath(start / unquote(parts.path).lstrip("/"))) if parts.path else path
    return (target / "index.html" if target.is_dir() else target), unquote(parts.fragment)


def test_the_pages_load_nothing_from_other_servers(site: Path, pages: dict[Path, Page]) -> None:
    assert [load for page in pages.values() for load in page.loads if urlsplit(load).netloc] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert [url for style in styles for url in re.findall(r"url\([\"']?(https?:[^)]*)\)", style)] == []


def test_links_out_of_the_folder_lead_to_copies(site: Path) -> None:
    assert "../CHANGELOG.md" in (DOCS / "index.md").read_text()
    assert "repository/CHANGELOG/" in Page((site / "index.html").read_text()).links
    assert "Changelog" in (site / "repository" / "CHANGELOG" / "index.html").read_text()


def test_the_search_knows_every_term_of_the_glossary(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    text = "".join(plain(entry["text"]) for entry in index["docs"] if entry["location"].startswith("glossary/"))
    terms = re.findall(r"(?m)^\| ([^|]+) \|", (DOCS / "glossary.md").read_text())[1:]
    assert len(terms) > 40
    assert [term for term in terms if term.replace("`", "") not in text] == []


def plain(html: str) -> str:
    """Return the words of a piece of HTML."""
    return re.sub(r"<[^>]*>", "", html)


def test_the_python_interface_lists_every_function(site: Path) -> None:
    ids = Page((site / "reference" / "python-api" / "index.html").read_text()).ids
    assert [name for name in ddl.__all__ if name != "Session" and f"ddlrun.ddl.{name}" not in ids] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_has_the_same_parts_on_a_forge(source: Path, site: Path, pages: dict[Path, Page]) -> None:
    html = MarkdownIt("commonmark").enable("table").render(source.read_text())
    assert pages[built(site, source)].blocks == Page(f"<article>{html}</article>").blocks


def test_the_site_has_no_programs_but_the_examples(site: Path) -> None:
    programs = {path.relative_to(site).parent for path in site.rglob("*.py*")}
    assert programs == {Path("examples"), Path("examples/recipes")}


@pytest.mark.parametrize(
    ("source", "link", "target", "uri"),
    [
        ("docs/index.md", "../CHANGELOG.md", "CHANGELOG.md", "repository/CHANGELOG.md"),
        ("docs/how-to/a.md", "../../configs/machines/dgx1.yaml", "configs/machines/dgx1.yaml",
         "repository/configs/machines/dgx1.yaml"),
        ("CHANGELOG.md", "docs/glossary.md", "docs/glossary.md", "glossary.md"),
    ],
)  # fmt: skip
def test_a_link_leads_to_a_file_of_the_repository(source: str, link: str, target: str, uri: str) -> None:
    needs.package("mkdocs", pip="'.[docs]'")
    from docs.site.outside_links import address, place, resolve  # noqa: PLC0415

    assert (resolve(source, link), address(target), place(uri)) == (target, uri, target)
    assert resolve(source, f"{link}.absent") == ""
    assert resolve(source, "../../../etc/passwd") == ""
