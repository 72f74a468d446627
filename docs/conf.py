"""
The site of documentation, for Sphinx: C{make docs}.  Its sources are the Markdown files of the checkout as they are, so
that each reads as well without it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from sphinx.application import Sphinx

from admission import __version__

sys.path.insert(0, str(Path(__file__).parent))
from apipage import tables

ROOT = Path(__file__).parent.parent
MANUAL = "docs/README"

project = "admission"
release = __version__
copyright = "the founders of admission, under the MIT licence"
extensions = ["myst_parser", "sphinx.ext.intersphinx"]
# What pydoctor has written before, in the same directory.
intersphinx_mapping = {"api": ("api", "build/site/api/objects.inv")}
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "examples/*/README.md"]
exclude_patterns = [".*", "build", "dist", "data", "src", "plugins", "twisted", "tests", "newsfragments"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"admission {release}"
html_show_sphinx = False
html_theme_options = {"footer_icons": []}

_SECTION = re.compile(r"^(?=## )", re.MULTILINE)
_LINK = re.compile(r"\]\(([\w-]+)\.md\)")


def contents() -> str:
    """
    The tables of contents of the landing page: the kinds of users and their pages, as the index of the manual has them.
    """
    index = (ROOT / f"{MANUAL}.md").read_text(encoding="utf-8")
    seen: set[str] = set()
    found = []
    for section in _SECTION.split(index):
        caption = section.partition("\n")[0].lstrip("# ")
        pages = [page for page in dict.fromkeys(_LINK.findall(section)) if page not in seen]
        seen.update(pages)
        if pages:
            found.append(_table(caption, (f"docs/{page}" for page in pages)))
    found.append(_table("The project", ["ARCHITECTURE", "CONTRIBUTING", "SECURITY", MANUAL]))
    found.append(
        _table("Examples", sorted(str(path.relative_to(ROOT))[:-3] for path in ROOT.glob("examples/*/README.md")))
    )
    return "\n\n".join(found)


def _table(caption: str, pages: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] += f"\n{contents()}\n"
    if name == "docs/api":
        source[0] += f"\n{tables(source[0])}\n"


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", _read)
