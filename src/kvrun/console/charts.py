"""Charts as SVG, made here: shapes only, so that text stays text at every width. Pure.

The pages write every number beside its chart as well; a chart is a picture of that table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_WIDTH = 100.0
_HEIGHT = 40.0
_SERIES = 6


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: what it is, how much, and its colour's number (0 to 5)."""

    label: str
    value: float
    colour: int = 0


def share_bar(title: str, parts: Sequence[Part]) -> Markup:
    """One bar cut into parts whose lengths are their shares of the sum."""
    total = sum(max(part.value, 0.0) for part in parts)
    rects, left = [], 0.0
    for part in parts if total > 0 else ():
        width = max(part.value, 0.0) / total * _WIDTH
        if width > 0:
            rects.append(_rect(left, width, part.colour))
        left += width
    return _svg("bar", title, _WIDTH, 10, Markup("").join(rects))


def level_bar(title: str, value: float, limit: float, colour: int = 0) -> Markup:
    """How full something is: ``value`` of ``limit``."""
    share = min(max(value / limit, 0.0), 1.0) if limit > 0 else 0.0
    return _svg("bar", title, _WIDTH, 10, _rect(0, share * _WIDTH, colour))


def line(title: str, values: Sequence[float], colour: int = 0) -> Markup:
    """Values over time, oldest first, from zero to their maximum."""
    top = max(values, default=0.0) or 1.0
    step = _WIDTH / max(len(values) - 1, 1)
    points = [
        (number * step, _HEIGHT - 1 - max(value, 0.0) / top * (_HEIGHT - 2))
        for number, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append((_WIDTH, points[0][1]))
    text = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    body = Markup(
        '<polygon class="fill" points="0,{height} {points} {width},{height}"></polygon>'
        '<polyline class="stroke" points="{points}" vector-effect="non-scaling-stroke">'
        "</polyline>"
    ).format(points=text, width=f"{_WIDTH:.0f}", height=f"{_HEIGHT:.0f}")
    return _svg(f"line c{colour % _SERIES}", title, _WIDTH, _HEIGHT, body if points else Markup(""))


def _rect(left: float, width: float, colour: int) -> Markup:
    shape = Markup('<rect class="c{}" x="{:.3f}" y="0" width="{:.3f}" height="10"></rect>')
    return shape.format(colour % _SERIES, left, width)


def _svg(kind: str, title: str, width: float, height: float, body: Markup) -> Markup:
    return Markup(
        '<svg class="chart {kind}" role="img" aria-label="{title}" preserveAspectRatio="none"'
        ' viewBox="0 0 {width:.0f} {height:.0f}">{body}</svg>'
    ).format(kind=kind, title=escape(title), width=width, height=height, body=body)
