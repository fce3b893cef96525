"""Curves of a run as SVG that takes its colours from the page, so that it is right in light and dark."""

from __future__ import annotations

import html
import io
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.run_folder import finite
from ops.screen import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Drawn in these, then replaced by the page's own colours.
TEXT, LINE, _GRID = "#010203", "#040506", "#070809"
_PAGE_COLOURS = {TEXT: "var(--text-soft)", LINE: "var(--accent)", _GRID: "var(--rule)"}


@dataclass(frozen=True)
class Curve:
    """One figure: a metric over steps."""

    metric: str
    title: str
    unit: str


CURVES = (
    Curve("loss", "Training loss", "cross-entropy, nats per token"),
    Curve("tokens_per_second", "Throughput", "tokens/s, all workers"),
    Curve("step_seconds", "Step time", "seconds"),
    Curve("mfu", "Model FLOP/s utilisation", "fraction of the GPUs' peak"),
    Curve("memory_gib", "Memory, rank 0", "GiB, highest so far"),
    Curve("grad_norm", "Gradient norm", "before clipping"),
    Curve("learning_rate", "Learning rate", "AdamW step size"),
)


def svg(curve: Curve, rows: Sequence[dict[str, Any]]) -> str | None:
    """The curve as an <svg> element; None if no row has a finite value of this metric."""
    points = [(row["step"], row[curve.metric]) for row in rows if finite(row.get(curve.metric))]
    if not points:
        return None
    (first_x, first), (last_x, last) = points[0], points[-1]
    label = f"{curve.title}: {first:.4g} at step {first_x}, {last:.4g} at step {last_x}"
    with figure_for_page(curve.metric) as figure:
        _draw(figure, curve, points)
        return for_page(figure, label)


def svg_of_runs(curve: Curve, runs: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> str | None:
    """One metric of several runs on the same axes; None if none has a finite value. `runs`: label and rows."""
    found = [(label, [(row["step"], row[curve.metric]) for row in rows if finite(row.get(curve.metric))])
             for label, rows in runs]
    if not any(points for _, points in found):
        return None
    with figure_for_page(f"{curve.metric}-pair") as figure:
        axes = figure.add_subplot()
        for (label, points), colour, dashes in zip(found, (LINE, TEXT), ("-", "--"), strict=True):
            axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linestyle=dashes,
                      linewidth=1.8, marker="o" if len(points) < 3 else None, label=short(label, 40))
        _label(axes, curve)
        axes.legend(frameon=False)
        last = (f"{label} {points[-1][1]:.4g} at step {points[-1][0]}" for label, points in found if points)
        return for_page(figure, f"{curve.title}: {'; '.join(last)}")


def step_times(rows: Sequence[dict[str, Any]]) -> str | None:
    """How often a step took how long, as an <svg> element; None for fewer than two steps."""
    seconds = [row["step_seconds"] for row in rows if finite(row.get("step_seconds"))]
    if len(seconds) < 2:
        return None
    with figure_for_page("step-times") as figure:
        axes = figure.add_subplot()
        axes.hist(seconds, bins=min(40, len(seconds)), color=LINE)
        axes.set_xlabel("seconds a step")
        axes.set_ylabel("steps")
        return for_page(figure, f"Step times from {min(seconds):.4g} to {max(seconds):.4g} seconds")


@contextmanager
def figure_for_page(name: str) -> Iterator[Figure]:
    """An empty matplotlib figure; inside the block everything is drawn in the page's colours.

    `name` tells the ids of one figure from another's on the same page.
    """
    if not os.access(os.environ.get("HOME", "/nonexistent"), os.W_OK):
        # matplotlib caches its fonts in the home folder, and warns if it cannot
        cache = Path(tempfile.gettempdir()) / f"eagleray-matplotlib-{os.getuid()}"
        os.environ.setdefault("MPLCONFIGDIR", str(cache))
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif",
             "font.size": 10, "text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT,
             "ytick.color": TEXT, "axes.edgecolor": _GRID, "grid.color": _GRID}
    with matplotlib.rc_context(style):
        yield Figure(figsize=(5.2, 2.9), layout="constrained")


def _draw(figure: Figure, curve: Curve, points: Sequence[tuple[float, float]]) -> None:
    axes = figure.add_subplot()
    axes.plot([x for x, _ in points], [y for _, y in points], color=LINE, linewidth=1.8,
              marker="o" if len(points) < 3 else None, solid_joinstyle="round")
    _label(axes, curve)


def _label(axes: Axes, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("optimizer step")
    axes.set_ylabel(curve.unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, linewidth=0.6)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 6), useMathText=True)
    axes.margins(x=0.01)
    if curve.metric in ("tokens_per_second", "step_seconds", "learning_rate", "mfu", "memory_gib"):
        axes.set_ylim(bottom=0)


def for_page(figure: Figure, label: str) -> str:
    """The figure as an <svg> element; `label` is what a screen reader says. Call inside `figure_for_page`."""
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    for drawn, colour in _PAGE_COLOURS.items():
        text = text.replace(drawn, colour)
    text = re.sub(r'(?<=[ "])font: [\d.]+px [^;"]*', lambda m: m[0].split("px")[0] + "px var(--font)", text)
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>",
                  lambda m: f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
                            f'{m[1]} role="img" aria-label="{html.escape(label, quote=True)}">', text, count=1)
