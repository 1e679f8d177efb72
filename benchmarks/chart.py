"""The chart of the codec benchmark's results, as SVG. Its time axes are logarithmic."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import log10
from typing import Final

from benchmarks.results import Results, Times

WIDTH: Final = 900
BAR: Final = 24
LABELS: Final = 150
"""Width of the area with the implementations' names, to the left of the bars, in pixels."""
BARS_END: Final = 520
"""Right end of the area with the bars, in pixels from the left edge of the chart."""
LINES: Final = (600, 760)
"""Left and right end of the lines, in pixels from the left edge. The name of a line is to its right."""

LABEL: Final = 14
"""Smallest vertical distance between the names of two lines, in pixels."""

OURS: Final = "#2563a8"
OTHERS: Final = "#9aa3ad"
LIMIT: Final = "#1f2328"
COLORS: Final = {"C": LIMIT, "pypgoutput": OTHERS, "Node": OTHERS, "Node, strings": OTHERS}
STYLE: Final = "font: 12px sans-serif; fill: #1f2328"


def draw(times: Times, results: Results) -> str:
    """Return the chart as SVG: each implementation's time as a bar, and its times by stream length as a line.

    Args:
        times: Nanoseconds per message for the bars, by name of the implementation.
        results: Benchmark results, with the times by stream length for the lines.
    """
    height = 70 + BAR * len(times)
    parts = [*_bars(times), *_lines(results.lengths, height)]
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} style="{STYLE}">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""])


def _bars(times: Times) -> Iterator[str]:
    yield _text(8, 22, "Nanoseconds per message, 6 columns in text format (logarithmic)", weight="bold")
    low, high = log10(min(times.values())) - 0.3, log10(max(times.values()))
    for i, (name, time) in enumerate(sorted(times.items(), key=lambda item: item[1])):
        top = 40 + i * BAR
        length = (log10(time) - low) / (high - low) * (BARS_END - LABELS - 60)
        yield _text(LABELS - 8, top + 14, name, anchor="end")
        yield f'<rect x="{LABELS}" y="{top}" width="{length:.0f}" height="{BAR - 6}" fill="{_color(name)}"/>'
        yield _text(LABELS + length + 6, top + 14, f"{time:,.0f}")


def _lines(lengths: dict[int, Times], height: int) -> Iterator[str]:
    left, right = LINES
    yield _text(left - 40, 22, "The same, by number of messages in the stream", weight="bold")
    all_times = [time for times in lengths.values() for time in times.values()]
    low, high = log10(min(all_times)) - 0.1, log10(max(all_times)) + 0.1
    first, last = log10(min(lengths)), log10(max(lengths))

    def x_of(length: int) -> float:
        return left + (log10(length) - first) / (last - first) * (right - left)

    def y_of(time: float) -> float:
        return height - 40 - (log10(time) - low) / (high - low) * (height - 80)

    for length in lengths:
        yield _text(x_of(length), height - 14, f"10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[round(log10(length))]}", anchor="middle")
    for name in next(iter(lengths.values())):
        places = [(x_of(length), y_of(times[name])) for length, times in lengths.items()]
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        yield f'<polyline points="{points}" fill="none" stroke="{_color(name)}" stroke-width="2"/>'
        for x, y in places:
            yield f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{_color(name)}"/>'
    longest = lengths[max(lengths)]
    next_y = float(height)
    for name, time in sorted(longest.items(), key=lambda item: item[1]):  # names must not overlap
        next_y = min(y_of(time), next_y - LABEL)
        yield _text(right + 12, next_y + 4, f"{time:,.0f}  {name}")


def _color(name: str) -> str:
    return COLORS.get(name, OURS)


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"
