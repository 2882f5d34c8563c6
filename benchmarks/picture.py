"""Line charts of a benchmark as one SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_STYLE = {"svg.hashsalt": "millpond", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
_MARKS = "os^vDPX*"


class Panel(NamedTuple):
    """A chart: values of each series at the places of the x axis; NaN is a gap. `log`: the y axis is logarithmic."""

    title: str
    x: Sequence[float]
    series: Mapping[str, Sequence[float]]
    log: bool = False


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write the panels in two rows, their series named below."""
    pyplot = _pyplot()
    columns = -(-len(panels) // 2)
    figure, places = pyplot.subplots(2, columns, figsize=(4 * columns, 6.4), squeeze=False, layout="constrained")
    for panel, axes in zip(panels, places.flat, strict=False):
        for mark, (name, values) in zip(_MARKS, panel.series.items(), strict=False):
            axes.plot(range(len(panel.x)), values, marker=mark, markersize=4, label=name)
        axes.set_title(panel.title)
        axes.set_xticks(range(len(panel.x)), [f"{value:,}" for value in panel.x])
        axes.set_yscale("log" if panel.log else "linear")
        if not panel.log:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
    for axes in places.flat[len(panels) :]:
        axes.remove()
    handles, names = places.flat[0].get_legend_handles_labels()
    figure.suptitle(title)
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def timeline(path: Path, title: str, points: Sequence[tuple[float, float]], marks: Sequence[tuple[float, str]]) -> None:
    """Write a chart of values over seconds, with what happened when: a colour for each kind."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(12, 4), layout="constrained")
    axes.plot(*zip(*points, strict=True), "k.", markersize=3)
    kinds = list(dict.fromkeys(kind for _, kind in marks))
    for at, kind in marks:
        label = kind if (at, kind) == next(mark for mark in marks if mark[1] == kind) else None
        axes.axvline(at, color=f"C{kinds.index(kind) % 10}", linewidth=1, alpha=0.6, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _pyplot() -> Any:
    """Matplotlib, imported when a picture is drawn: every process of the tests imports the benchmarks."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(_STYLE | {"font.size": 9})
    from matplotlib import pyplot

    return pyplot
