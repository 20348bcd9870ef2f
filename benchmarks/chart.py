"""Charts as SVG text: points and lines on linear or logarithmic axes. Small files that differ only where the data do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 820, 440, 70, 40, 190, 55
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4b5563")


@dataclass(frozen=True)
class Series:
    """``points`` are (x, y, what the mouse shows); joined by a line where ``joined``."""

    name: str
    points: Sequence[tuple[float, float, str]]
    joined: bool = False


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high`` with ``ticks`` at these values."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False
    unit: str = ""

    def place(self, value: float, begin: float, end: float) -> float:
        """Where a value stands between two pixels; values beyond the ends stand at them."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, min(max(value, self.low), self.high)))
        return begin + (at - low) / (high - low) * (end - begin)


@dataclass(frozen=True)
class Chart:
    """``rules`` are horizontal lines at heights, with their text."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    rules: Sequence[tuple[float, str]] = field(default=())

    def svg(self) -> str:
        parts = [*self._frame(), *(line for height, text in self.rules for line in self._rule(height, text))]
        for number, series in enumerate(self.series):
            parts += self._series(series, COLOURS[number % len(COLOURS)], TOP + 14 + 20 * number)
        body = "\n".join(parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
        )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self.x.place(x, LEFT, WIDTH - RIGHT), self.y.place(y, HEIGHT - BOTTOM, TOP)

    def _frame(self) -> list[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = [
            f'<text x="{LEFT}" y="22" font-size="15">{escape(self.title)}</text>',
            f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(self.x.label)}</text>',
            f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">{escape(self.y.label)}</text>',
        ]
        for tick in self.x.ticks:
            x, _ = self._at(tick, self.y.low)
            parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#e5e7eb"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{_number(tick)}{self.x.unit}</text>')
        for tick in self.y.ticks:
            _, y = self._at(self.x.low, tick)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e5e7eb"/>')
            parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}{self.y.unit}</text>')
        return [*parts, f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#111827"/>']

    def _rule(self, height: float, text: str) -> list[str]:
        _, y = self._at(self.x.low, height)
        line = f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#111827" stroke-dasharray="5 4"/>'
        return [line, f'<text x="{WIDTH - RIGHT + 6}" y="{y + 4:.1f}">{escape(text)}</text>']

    def _series(self, series: Series, colour: str, legend: float) -> list[str]:
        places = [(*self._at(x, y), text) for x, y, text in series.points]
        left = WIDTH - RIGHT + 12
        parts = [
            f'<circle cx="{left}" cy="{legend - 4}" r="4" fill="{colour}"/>',
            f'<text x="{left + 10}" y="{legend}">{escape(series.name)}</text>',
        ]
        if series.joined and places:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for x, y, text in places:
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" fill-opacity="0.75"><title>{escape(text)}</title></circle>'
            )
        return parts


def powers(low: float, high: float, base: float = 10) -> list[float]:
    """The powers of ``base`` from ``low`` to ``high``."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base**exponent) for exponent in range(first, last + 1)]


def _number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
