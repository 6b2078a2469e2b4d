"""Charts of pages: coordinates, which ``templates/report.html`` draws as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_WIDTH, _HEIGHT = 400, 250  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 20, 22, 42


@dataclass
class Chart:
    """What is drawn, in pixels; kinds are classes of the style sheet.

    Args:
        words: description of the chart.
        height: height of the chart; its width is 400.
        grid: y of horizontal lines.
        lines: kind and points of lines; those of the kind "band" are filled.
        boxes: y of box plots, with their five x.
        dots: kind, x, y, radius and title of circles.
        labels: x, y, words and anchor of texts.
    """

    words: str = ""
    height: int = _HEIGHT
    grid: list[float] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[tuple[float, list[float]]] = field(default_factory=list)
    dots: list[tuple[str, float, float, float, str]] = field(default_factory=list)
    labels: list[tuple[float, float, str, str]] = field(default_factory=list)


class Axes(Chart):
    """A chart with axes, which maps values to coordinates."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        *,
        digits: int,
        log: bool = False,
    ):
        super().__init__()
        self.log, self.y = log, y
        self.x = (math.log(x[0]), math.log(x[1])) if log else x
        for tick in _ticks(*y):
            self.grid.append(self.up(tick))
            self.labels.append((_LEFT - 5, self.up(tick) + 4, f"{tick:.{digits}f}", "end"))
        self.labels.append(((_LEFT + _WIDTH) / 2, _HEIGHT - 4, names[0], "middle"))
        self.labels.append((4, 12, names[1], "start"))

    def across(self, value: float) -> float:
        value = math.log(value) if self.log else value
        share = (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        share = (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def tick(self, value: float, words: str) -> None:
        self.labels.append((self.across(value), _HEIGHT - 24, words, "middle"))

    def share_ticks(self, number_format: str) -> None:
        """Ticks from 0 to 1."""
        for value in (0, 0.2, 0.4, 0.6, 0.8, 1):
            self.tick(value, format(value, number_format))

    def line(self, kind: str, xs: Sequence[float], ys: Sequence[float]) -> None:
        points = (f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in zip(xs, ys, strict=True))
        self.lines.append((kind, " ".join(points)))

    def dot(self, kind: str, x: float, y: float, size: float = 4.0, title: str = "") -> None:
        self.dots.append((kind, self.across(x), self.up(y), size, title))


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    raw = (high - low) / 4 or 1.0
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * m for m in (1, 2, 5, 10) if scale * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
