"""Line charts side by side as one SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 320, 200, 56, 20
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


class Panel(NamedTuple):
    """A chart: values of each series at the places of the x axis; NaN is a gap. The y axis begins at zero."""

    title: str
    x: Sequence[float]
    series: Mapping[str, Sequence[float]]


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write the panels in a row, their series named below in the order of their colours."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    width = len(panels) * (_WIDTH + _MARGIN) + _MARGIN
    height = _HEIGHT + 2 * _MARGIN + 20 + _LEGEND * -(-len(names) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        ' font-size="12"><rect width="100%" height="100%" fill="white"/>',
        _text(width / 2, 20, title, size=15),
    ]
    for number, panel in enumerate(panels):
        left = _MARGIN + number * (_WIDTH + _MARGIN)
        parts += _panel(panel, left, _MARGIN, [names.index(name) for name in panel.series])
    for number, name in enumerate(names):
        x, y = _MARGIN + number % 4 * 190, _HEIGHT + 2 * _MARGIN + 10 + _LEGEND * (number // 4)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="14" height="9" fill="{_COLOURS[number % len(_COLOURS)]}"/>')
        parts.append(_text(x + 20, y, name, "start"))
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _panel(panel: Panel, left: int, top: int, colours: Sequence[int]) -> list[str]:
    most = float(np.nanmax([1e-9, *(value for values in panel.series.values() for value in values)]))
    places = np.linspace(left, left + _WIDTH, len(panel.x)) if len(panel.x) > 1 else np.array([left + _WIDTH / 2])
    bottom = top + _HEIGHT
    parts = [_text(left + _WIDTH / 2, top - 10, panel.title)]
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _HEIGHT
        parts.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y}" y2="{y}" stroke="#ccc"/>')
        parts.append(_text(left - 4, y + 4, f"{share * most:.3g}", "end"))
    parts += [_text(at, bottom + 18, f"{value:g}") for at, value in zip(places, panel.x, strict=True)]
    for colour, values in zip(colours, panel.series.values(), strict=True):
        found = [
            (at, bottom - value / most * _HEIGHT)
            for at, value in zip(places, values, strict=True)
            if np.isfinite(value)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in found)
        ink = _COLOURS[colour % len(_COLOURS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{ink}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{ink}"/>' for x, y in found]
    return parts


def _text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
