"""The benchmark of alignment at its smallest size: its counts are those that alignment promises."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import alignment
import pytest


@pytest.mark.slow
def test_aligned_instances_meet_their_own_primary_only(redis_installed: None, tmp_path: Path) -> None:
    figures = alignment.main(alignment.SMALL, tmp_path)
    assert (figures["hits_aligned_2"], figures["connections_aligned_2"]) == (1.0, 2)
    assert 0.3 < figures["hits_random_2"] < 0.7
    assert figures["connections_random_2"] == 4
    assert figures["batched_vs_one_2"] > 5
    assert ET.parse(tmp_path / "alignment.svg").getroot().tag.endswith("svg")
