"""Curves of a run as SVG that takes its colours from the page, so that it is right in light and dark."""

from __future__ import annotations

import html
import io
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.run_folder import finite

# Drawn in these, then replaced by the page's own colours.
_TEXT, _LINE, _GRID = "#010203", "#040506", "#070809"
_PAGE_COLOURS = {_TEXT: "var(--text-soft)", _LINE: "var(--accent)", _GRID: "var(--rule)"}


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
    Curve("grad_norm", "Gradient norm", "before clipping"),
    Curve("learning_rate", "Learning rate", "AdamW step size"),
)


def svg(curve: Curve, rows: Sequence[dict[str, Any]]) -> str | None:
    """The curve as an <svg> element; None if no row has a finite value of this metric."""
    points = [(row["step"], row[curve.metric]) for row in rows if finite(row.get(curve.metric))]
    if not points:
        return None
    figure = _draw(curve, points)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(text.getvalue(), curve, points)


def _draw(curve: Curve, points: Sequence[tuple[float, float]]):
    if not os.access(os.environ.get("HOME", "/nonexistent"), os.W_OK):
        # matplotlib caches its fonts in the home folder, and warns if it cannot
        cache = Path(tempfile.gettempdir()) / f"eagleray-matplotlib-{os.getuid()}"
        os.environ.setdefault("MPLCONFIGDIR", str(cache))
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": curve.metric, "font.family": "sans-serif",
             "font.size": 10, "text.color": _TEXT, "axes.labelcolor": _TEXT, "xtick.color": _TEXT,
             "ytick.color": _TEXT, "axes.edgecolor": _GRID, "grid.color": _GRID}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([x for x, _ in points], [y for _, y in points], color=_LINE, linewidth=1.8,
                  marker="o" if len(points) < 3 else None, solid_joinstyle="round")
        axes.set_xlabel("optimizer step")
        axes.set_ylabel(curve.unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(True, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 6), useMathText=True)
        axes.margins(x=0.01)
        if curve.metric in ("tokens_per_second", "step_seconds", "learning_rate"):
            axes.set_ylim(bottom=0)
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
    return figure


def _for_page(text: str, curve: Curve, points: Sequence[tuple[float, float]]) -> str:
    text = text[text.index("<svg") :]
    for drawn, colour in _PAGE_COLOURS.items():
        text = text.replace(drawn, colour)
    text = re.sub(r'(?<=[ "])font: [\d.]+px [^;"]*', lambda m: m[0].split("px")[0] + "px var(--font)", text)
    (first_x, first), (last_x, last) = points[0], points[-1]
    label = html.escape(f"{curve.title}: {first:.4g} at step {first_x}, {last:.4g} at step {last_x}", quote=True)
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>",
                  rf'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" \1 '
                  rf'role="img" aria-label="{label}">', text, count=1)
