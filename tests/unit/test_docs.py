"""Python examples in the documents compile; other tests run the examples that can be run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
OTHER_PAGES = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"}
"""Pages of the site that are not in docs."""

_FENCE = re.compile(r"^( *)```python\b[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def snippets(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the line where it begins.

    >>> snippets("text\\n```python\\nx = 1\\n```\\n```sql\\nSELECT 1\\n```\\n")
    [(3, 'x = 1\\n')]
    """
    found = []
    for match in _FENCE.finditer(text):
        indent = len(match[1])
        code = "".join(line[indent:] for line in match[2].splitlines(keepends=True))
        found.append((text.count("\n", 0, match.start(2)) + 1, code))
    return found


SNIPPETS = [
    pytest.param(page, line, code, id=f"{page.relative_to(ROOT).as_posix()}:{line}")
    for page in PAGES
    for line, code in snippets(page.read_text(encoding="utf-8"))
]


def test_the_pages_are_found() -> None:
    assert ROOT / "docs" / "formats.md" in PAGES
    assert SNIPPETS, "no page shows any Python"


@pytest.mark.parametrize("page, line, code", SNIPPETS)
def test_a_snippet_compiles(page: Path, line: int, code: str) -> None:
    compile(code, f"{page}:{line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if ":" not in target and not (page.parent / target).exists()]
    assert not missing


def test_the_site_is_built_and_has_every_page() -> None:
    """Its build fails at each link to a page, and each anchor, that leads nowhere."""
    site = ROOT / "docs" / "site"
    words = [sys.executable, str(site / "build.py")]
    built = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert built.returncode == 0, built.stdout
    listed = re.findall(r'"([^"]+\.md)"', (site / "zensical.toml").read_text(encoding="utf-8"))
    made = {f"reference/{name}.md" for name in ("commands", "python", "http")}
    assert set(listed) == {page.relative_to(ROOT).as_posix() for page in PAGES} | OTHER_PAGES | made
    text = (ROOT / "build" / "docs" / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert "Add a query; returns when it is in the log" in text


def package_page() -> str:
    """The README as pyproject.toml turns it into the text of the package page."""
    hook = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("fancy-pypi-readme.substitutions]]")[2]
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Documentation")[0]
    substitutions = re.findall(r"^pattern = '(.+)'\nreplacement = '(.*)'$", hook, re.MULTILINE)
    assert len(substitutions) == 2
    for pattern, replacement in substitutions:
        text = re.sub(pattern, replacement, text)
    return text


def test_the_package_page_has_no_link_into_a_checkout() -> None:
    text = package_page()
    assert "## A first query" in text
    assert not re.search(r"\]\((?!https?:)", text)
    assert "<!--" not in text
