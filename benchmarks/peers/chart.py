"""A picture of the results: each engine's time over the fastest peer's, on a logarithmic axis."""

from __future__ import annotations

import math
from html import escape

from benchmarks.chart import Axis
from benchmarks.peers.engines import ENGINES, OURS
from benchmarks.peers.results import Results, fastest_peer, median

COLOURS = ("#d62728", "#ff9896", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#393b79")
ROW, LEFT, WIDTH, TOP = 34, 130, 640, 30
AXIS = Axis("", 0.4, 64.0, (0.5, 1, 2, 4, 8, 16, 32, 64), log=True)  # what is further is drawn at the end


def chart(results: Results, threads: int) -> str:
    """SVG: a row for each model, a dot for each engine; left of 1 is faster than the fastest peer."""
    rows = [(model, results.group(model, count)) for model, count in results.measured() if count == threads]
    rows = [(model, group) for model, group in rows if fastest_peer(group)]
    names = [name for name in ENGINES if any(name in group for _, group in rows)]
    colours = dict(zip(ENGINES, COLOURS, strict=True))
    bottom = TOP + ROW * len(rows)
    height = bottom + 40 + 20 * math.ceil(len(names) / 4)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDTH + 30}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16">Time over the fastest peer\'s, {threads} thread{"s" if threads > 1 else ""} (left is faster)</text>',
    ]
    for mark in AXIS.ticks:
        x = _x(mark)
        colour, width = ("#444444", 1.5) if mark == 1 else ("#cccccc", 1)
        lines.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" stroke-width="{width}"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{mark:g}</text>')
    for number, (model, group) in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        peer = fastest_peer(group)
        assert peer is not None
        lines.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(model)}</text>')
        for name in reversed([name for name in names if name in group]):  # ours last, on top
            value = median(group[name]) / median(group[peer])
            label = f"{ENGINES[name].title}: {value:.2f}, {median(group[name]) * 1e3:.2f} ms"
            radius = 6 if name in OURS else 4.5
            lines.append(
                f'<circle cx="{_x(value):.1f}" cy="{y:.1f}" r="{radius}" fill="{colours[name]}" fill-opacity="0.85"><title>{escape(label)}</title></circle>'
            )
    for number, name in enumerate(names):
        x, y = LEFT + WIDTH / 4 * (number % 4), bottom + 40 + 20 * (number // 4)
        lines.append(
            f'<circle cx="{x:.1f}" cy="{y - 4}" r="5" fill="{colours[name]}"/><text x="{x + 10:.1f}" y="{y}">{escape(ENGINES[name].title)}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _x(value: float) -> float:
    return AXIS.place(value, LEFT, LEFT + WIDTH)
