"""The version says whether this is a release: compiled files and Python workers of another version are not used."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import Version

from millpond.version import VERSION

ROOT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_newest_release_or_a_development_version_after_it() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, released = re.findall(r"^## \[?([^\]\s]+)\]?.*\n((?:(?!## ).*\n)*)", changelog, re.MULTILINE)[:2]
    assert unreleased[0] == "Unreleased"
    ours, newest = Version(VERSION), Version(released[0])
    assert ours.is_devrelease == bool(unreleased[1].strip())
    assert ours > newest if ours.is_devrelease else ours == newest


def test_the_package_and_the_chart_have_this_version() -> None:
    package = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    chart = re.findall(r"^(?:appVersion|version): (.*)$", (ROOT / "deploy/helm/Chart.yaml").read_text(), re.MULTILINE)
    assert package
    assert package[1] == VERSION
    assert [Version(version) for version in chart] == [Version(VERSION)] * 2
