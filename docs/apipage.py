"""
The tables of the page C{api.md}: every public name, what it is in a sentence, its reference, and a page with an example
that runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

from admission.lazynames import publishedBy, sourcesOf

ROOT = Path(__file__).parent.parent
FRONT = "admission"

_IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
_MARKUP = re.compile(r"\b([A-Z])\{([^{}<]*?)(?:\s*<[^>]*>)?\}")
_PAGE = re.compile(r"\]\(([\w-]+\.md)\)")
_DOOR = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)


@frozen
class Name:
    """
    A public name.

    @ivar fullName: where it is defined.
    @ivar sentence: the first of its docstring, as Markdown; empty if it has none, as constants may.
    """

    fullName: str
    sentence: str


def tables(page: str) -> str:
    """
    A section for each door that the page's own table names.

    @raise ValueError: if a name of the front door has no example.
    """
    return "\n".join(line for door in _DOOR.findall(page) for line in _section(door))


def _section(door: str) -> Iterator[str]:
    yield from ("", f"## `{door}`", "", "| Name | | Example |", "|---|---|---|")
    examples = _examples()
    for name in publishedBy(door):
        described = _described(door, name)
        if described is None:
            continue
        found = examples.get((door, name), "")
        if door == FRONT and not found:
            raise ValueError(f"no page of the manual shows {door}.{name}")
        yield f"| [`{name}`](inv:api#{described.fullName}) | {described.sentence} | {found} |"


def _described(door: str, name: str) -> Name | None:
    module = sourcesOf(door).get(name, door)
    found = next((each for each in _defined(module) if name in _namesOf(each[0])), None)
    if found is None:
        # It is imported from elsewhere, for the module itself.
        return None
    node, following = found
    text: str | None = ""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        text = ast.get_docstring(node)
    elif isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        text = str(following.value.value)
    paragraph = " ".join((text or "").partition("\n\n")[0].partition("\n@")[0].split())
    sentence = re.split(r"(?<=\.) ", paragraph)[0]
    return Name(f"{module}.{name}", _MARKUP.sub(r"`\2`", sentence).replace("|", r"\|"))


def _namesOf(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


@cache
def _defined(module: str) -> list[tuple[ast.stmt, ast.stmt | None]]:
    # Without importing it: it may need an extra.
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    # What follows a constant may be its docstring.
    return list(zip(body, [*body[1:], None], strict=True))


@cache
def _examples() -> dict[tuple[str, str], str]:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    manual = [ROOT / "docs" / page for page in _PAGE.findall(index)]
    pages = [ROOT / "README.md", *manual, *sorted((ROOT / "examples").glob("**/*.py"))]
    found: dict[tuple[str, str], str] = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for module, names in _IMPORT.findall(text):
            for name in re.findall(r"\w+", names):
                title = text.partition("\n")[0].lstrip("# ") if page.suffix == ".md" else page.name
                found.setdefault((module, name), f"[{title}](../{page.relative_to(ROOT)})")
    return found
