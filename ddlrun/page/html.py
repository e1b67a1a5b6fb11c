"""The HTML of a run's page: its parts, and the data of a page that is a file."""

import json
import os
import secrets
from contextlib import closing

from ddlrun.page.feed import RunFeed
from ddlrun.page.run_files import LOG_BYTES, read_logs

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parts")
SCRIPTS = ("elements.js", "charts.js", "ranks.js", "page.js")
POLICY = (
    "default-src 'none'; img-src data:; style-src 'nonce-{0}'; script-src 'nonce-{0}'; "
    "base-uri 'none'; form-action 'none'"
)
# The size of all logs in a file together.
ALL_LOG_BYTES = 1 << 21


def render_page(nonce: str, policy: str = "", data: str = "") -> str:
    """Return the page; its style and script carry a nonce, without which the browser runs nothing.

    Without data, the page is that of a server, from which it reads them.
    """
    page, style = _read("page.html"), _read("page.css")
    script = "".join(map(_read, SCRIPTS))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    parts = {"NONCE": nonce, "<!-- POLICY -->": head, "/* STYLE */": style, "/* SCRIPT */": script, "DATA": data}
    for name, text in parts.items():
        page = page.replace(name, text)
    return page


def render_file(folder: str) -> str:
    """Return the page of a run as one file, with the ends of the logs of its ranks."""
    with closing(RunFeed(folder)) as feed:
        message = feed.read()
    places = message["content"]["places"] if message and message["content"] else []
    most = min(LOG_BYTES, ALL_LOG_BYTES // max(1, len(places)))
    logs = read_logs(folder, [place["rank"] for place in places], most)
    data = json.dumps({**(message or {}), "logs": logs}).replace("<", "\\u003c")
    nonce = secrets.token_urlsafe(16)
    return render_page(nonce, POLICY.format(nonce), data)


def _read(name: str) -> str:
    with open(f"{FOLDER}/{name}", encoding="utf-8") as file:
        return file.read()
