"""Builds the documentation as a site in build/docs/site: `make docs`.

The pages of the project keep their places in the site, so links between them stay as they are. Three pages of reference
are made from the code: commands, Python and HTTP. The build fails at a link or an anchor that leads nowhere.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "docs"
"""Pages, configuration and cache of the build."""

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def collect(pages: Path) -> None:
    """Copy all pages of the project, and the files that they link to, to a folder."""
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        text = page.read_text(encoding="utf-8")
        linked = {(page.parent / link).resolve() for link in _LINK.findall(text)}
        for file in {page, *linked}:
            target = pages / file.relative_to(ROOT)
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def commands() -> str:
    """The page of all commands, from their help."""
    words = ["typer", "millpond.cli", "utils", "docs", "--name", "millpond", "--title", "Commands"]
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True).stdout


def python() -> str:
    """The page of the public Python names; mkdocstrings fills in their docstrings."""
    names = [name for name in millpond.__all__ if not name.startswith("_")]
    return "# Python\n\n" + "\n".join(f"::: {getattr(millpond, name).__module__}.{name}\n" for name in names)


def http(interface: dict[str, Any]) -> str:
    """The page of the HTTP interface, from its OpenAPI description.

    >>> answer = {"description": "Done", "content": {"application/json": {"schema": {"type": "integer"}}}}
    >>> print(http({"paths": {"/v1/n": {"get": {"summary": "A number", "responses": {"200": answer}}}},
    ...             "components": {"schemas": {"Point": {"properties": {"x": {"type": "integer"}}}}}}))
    # HTTP
    <BLANKLINE>
    ## `GET /v1/n`
    <BLANKLINE>
    A number.
    <BLANKLINE>
    Answer: integer.
    <BLANKLINE>
    ## Types
    <BLANKLINE>
    ### Point
    <BLANKLINE>
    | field | type | meaning |
    |---|---|---|
    | `x` | integer | optional |
    """
    paths = [(method, path, call) for path, calls in interface["paths"].items() for method, call in calls.items()]
    lines = ["# HTTP", *(line for each in paths for line in _call(*each)), "## Types"]
    for name, schema in interface["components"]["schemas"].items():
        lines += [f"### {name}", _schema(schema)]
    return "\n\n".join(lines)


def _call(method: str, path: str, call: dict[str, Any]) -> Iterator[str]:
    yield f"## `{method.upper()} {path}`"
    yield f"{call['summary']}."
    if parameters := call.get("parameters"):
        yield _table((one["name"], one["schema"], one.get("description", "")) for one in parameters)
    if body := call.get("requestBody"):
        yield f"Body: {_type(body['content']['application/json']['schema'])}."
    for status, answer in call["responses"].items():
        if status != "default" and (content := answer.get("content")):
            yield f"Answer: {_type(next(iter(content.values()))['schema'])}."


def _schema(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    fields = schema.get("properties", {})
    if not fields:
        return _type(schema)
    return _table(
        (name, field, " ".join(filter(None, ["" if name in required else "optional", field.get("description")])))
        for name, field in fields.items()
    )


def _table(rows: Iterator[tuple[str, dict[str, Any], str]]) -> str:
    lines = (f"| `{name}` | {_type(schema)} | {meaning} |" for name, schema, meaning in rows)
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *lines])


def _type(schema: dict[str, Any]) -> str:
    """A type in words, with a link if it has a name."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": parts} | {"oneOf": parts}:
            return " or ".join(_type(part) for part in parts)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"type": kind}:
            return str(kind)
        case _:
            return "any"


def build() -> int:
    """Write the site; the exit status of the build."""
    shutil.rmtree(WORK, ignore_errors=True)
    pages = WORK / "pages"
    collect(pages)
    (pages / "reference").mkdir()
    interface = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    for name, text in (("commands", commands()), ("python", python()), ("http", http(interface))):
        (pages / "reference" / f"{name}.md").write_text(text, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("zensical.toml"), WORK / "zensical.toml")
    words = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(WORK / "zensical.toml")]
    return subprocess.run(words, cwd=WORK, check=False).returncode


if __name__ == "__main__":
    sys.exit(build())
