"""The charts of the HTML report, as SVG."""

import html
import math
from collections.abc import Sequence

from ownbert.fitting.report.calibration import Calibration, ReliabilityCurve
from ownbert.fitting.report.contents import LeaderboardRow
from ownbert.fitting.report.drift import Drift
from ownbert.fitting.report.learning_curve import LearningCurve
from ownbert.language import translated

_WIDTH, _HEIGHT = 400, 250
_FEW = 5  # rows per bin
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 20, 22, 42


class _Axes:
    """Maps values to coordinates of a chart."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], *, log: bool = False):
        self.log, self.y = log, y
        self.x = (math.log(x[0]), math.log(x[1])) if log else x

    def across(self, value: float) -> float:
        value = math.log(value) if self.log else value
        share = (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        share = (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def line(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(
            f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in zip(xs, ys, strict=True)
        )

    def grid(self, digits: int) -> str:
        lines = []
        for tick in _ticks(*self.y):
            y = self.up(tick)
            lines.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
            lines.append(_label(_LEFT - 5, y + 4, f"{tick:.{digits}f}", "end"))
        return "".join(lines)


def curve_chart(curve: LearningCurve, metric: str) -> str:
    """Measured scores, the fitted curve with its interval, and its extrapolation (dashed)."""
    values = [*curve.scores]
    ends = [*curve.at, *(one.at for one in curve.further)]
    if curve.fitted is not None:
        values += [*curve.fitted[1:].min(1), *curve.fitted[1:].max(1)]
    low, high = min(values), max(values)
    room = max(0.01, (high - low) * 0.06)
    axes = _Axes((min(ends), max(*ends, min(ends) * 1.01)), (low - room, high + room), log=True)
    parts = [axes.grid(2 if high - low > 0.05 else 3)]
    if curve.fitted is not None:
        places, scores, lower, upper = curve.fitted
        around = axes.line([*places, *places[::-1]], [*upper, *lower[::-1]])
        parts.append(f'<polygon class="band" points="{around}"/>')
        inside = places <= curve.at[-1] * 1.0001
        cut = int(inside.sum())
        solid, dashed = slice(0, cut), slice(max(0, cut - 1), None)
        parts.append(f'<polyline class="fit" points="{axes.line(places[solid], scores[solid])}"/>')
        dashes = axes.line(places[dashed], scores[dashed])
        parts.append(f'<polyline class="fit dashed" points="{dashes}"/>')
    for x, y in zip(curve.at, curve.scores, strict=True):
        parts.append(_dot(axes.across(x), axes.up(y), "dot"))
    for one in curve.further:
        parts.append(_dot(axes.across(one.at), axes.up(one.score), "hollow"))
    last = -math.inf
    for x in sorted(set(ends)):  # skip labels that would overlap
        if axes.across(x) - last > 44:
            last = axes.across(x)
            parts.append(_label(last, _HEIGHT - 24, _short(x), "middle"))
    parts.append(_label((_LEFT + _WIDTH) / 2, _HEIGHT - 4, f"{curve.unit} (log scale)", "middle"))
    parts.append(_label(4, 12, metric))
    return _svg(parts, f"{metric} by {curve.unit}, measured, fitted and extrapolated")


def reliability_chart(calibration: Calibration) -> str:
    """Accuracy by confidence, before and after temperature scaling; the diagonal is perfect."""
    axes = _Axes((0.0, 1.0), (0.0, 1.0))
    parts = [axes.grid(1)]
    for x in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts.append(_label(axes.across(x), _HEIGHT - 24, f"{x:.1f}", "middle"))
    parts.append(f'<polyline class="ideal" points="{axes.line((0, 1), (0, 1))}"/>')
    if calibration.helps:
        parts.append(_reliability_line(axes, calibration.after, "fit dashed"))
    parts.append(_reliability_line(axes, calibration.before, "fit"))
    before = calibration.before
    most = max(1, int(before.count.max()))
    for x, y, count in zip(before.confidence, before.accuracy, before.count, strict=True):
        if count:
            size = 2.5 + 4.5 * math.sqrt(count / most)
            title = f"{count:,} rows: confidence {x:.2f}, accuracy {y:.2f}"
            parts.append(_dot(axes.across(x), axes.up(y), "dot", size, title))
    parts.append(_label((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "confidence", "middle"))
    parts.append(_label(4, 12, "accuracy"))
    return _svg(parts, "accuracy by confidence")


def risk_chart(risk: Sequence[tuple[float, float]]) -> str:
    """Error rate by coverage: the share of texts that are answered, the most confident first."""
    shares, errors = zip(*risk, strict=True)
    axes = _Axes((0.0, 1.0), (0.0, max(0.01, *errors)))
    parts = [axes.grid(2 if max(errors) > 0.05 else 3)]
    for x in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts.append(_label(axes.across(x), _HEIGHT - 24, f"{x:.0%}", "middle"))
    parts.append(f'<polyline class="fit" points="{axes.line(shares, errors)}"/>')
    last = f"all answered: {errors[-1]:.1%} wrong"
    parts.append(_dot(axes.across(shares[-1]), axes.up(errors[-1]), "dot", title=last))
    parts.append(_label((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "share answered", "middle"))
    parts.append(_label(4, 12, "share wrong"))
    return _svg(parts, "share wrong by share answered")


def _reliability_line(axes: _Axes, curve: ReliabilityCurve, kind: str) -> str:
    used = curve.count >= _FEW  # bins of one or two rows are noise
    points = axes.line(curve.confidence[used].tolist(), curve.accuracy[used].tolist())
    return f'<polyline class="{kind}" points="{points}"/>'


def score_bar(row: LeaderboardRow, low: float, high: float) -> str:
    """A score as a dot with two standard deviations on both sides, between ``low`` and ``high``."""

    def across(score: float) -> float:
        return 6 + 128 * (score - low) / ((high - low) or 1)

    parts = ['<path class="grid" d="M0 9H140"/>']
    if row.spread:
        ends = (across(row.score - 2 * row.spread), across(row.score + 2 * row.spread))
        parts.append(f'<path class="whisker" d="M{ends[0]:.1f} 9H{ends[1]:.1f}"/>')
    if row.test_score is not None:
        title = f"test {row.test_score:.3f}"
        parts.append(_dot(across(row.test_score), 9, "hollow", 4.5, title))
    if row.measured:
        parts.append(_dot(across(row.score), 9, "dot", 4.5, f"{row.score:.3f}"))
    return f'<svg class="score" viewBox="0 0 140 18" width="140" height="18">{"".join(parts)}</svg>'


def length_chart(drift: Drift) -> str:
    """Lengths of labelled and unlabelled texts: percentiles 5 to 95, quartiles and median."""
    values = [max(1.0, v) for v in (*drift.lengths, *drift.unlabelled_lengths)]
    low, most = math.log(min(values)), math.log(max(values))
    parts = []
    for place, (name, values) in enumerate(
        (("labelled", drift.lengths), ("unlabelled", drift.unlabelled_lengths))
    ):
        y = 30 + 44 * place
        xs = [6 + 388 * (math.log(max(1.0, v)) - low) / ((most - low) or 1) for v in values]
        parts.append(_label(4, y - 14, f"{name}: median {values[2]:,.0f} tokens"))
        parts.append(f'<path class="whisker" d="M{xs[0]:.1f} {y}H{xs[4]:.1f}"/>')
        wide = max(2.0, xs[3] - xs[1])
        parts.append(
            f'<rect class="half" x="{xs[1]:.1f}" y="{y - 8}" width="{wide:.1f}" height="16"/>'
        )
        parts.append(f'<path class="median" d="M{xs[2]:.1f} {y - 8}v16"/>')
    return _svg(parts, "lengths of labelled and unlabelled texts, log scale", 90)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    raw = (high - low) / 4 or 1.0
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * m for m in (1, 2, 5, 10) if scale * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}k"
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _dot(x: float, y: float, kind: str, size: float = 4.0, title: str = "") -> str:
    inside = f"<title>{html.escape(translated(title))}</title>" if title else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}">{inside}</circle>'


def _label(x: float, y: float, words: str, anchor: str = "start") -> str:
    inside = html.escape(translated(words))
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inside}</text>'


def _svg(parts: Sequence[str], words: str, height: int = _HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(translated(words))}">{"".join(parts)}</svg>'
    )
