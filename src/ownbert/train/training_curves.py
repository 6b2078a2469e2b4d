"""Plots of runs: the curves of a run, and metrics of several runs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ownbert.figures import installed_figure, save_figure
from ownbert.language.messages import Message
from ownbert.objectives import PRETRAINING
from ownbert.train.log import CURVES
from ownbert.train.metric_names import UP_TO_ONE, shown_name

Row = Mapping[str, Any]

# Losses of words share a panel. Those of binary objectives, which are much smaller, have another.
_TOKENS = {
    name for name, objective in PRETRAINING.items() if objective.predicts or objective.decodes
}
# Maximum fine-tuning metrics in one panel.
_MAX_METRICS = 3
_BASELINES = ("unigram", "uniform")
_BASELINE_LOSSES = tuple(f"{name}_loss" for name in _BASELINES)
_LABELS = {"fontsize": 8, "frameon": False}
# Fixed position of titles: automatic placement takes a fifth of the drawing time.
_TITLE = {"y": 1.0}


def draw_curves(folder: Path, rows: Sequence[Row]) -> Path | None:
    """Plot losses, accuracies and other metrics over the steps of a run in ``curves.png``; None if
    matplotlib is missing or the log is empty."""
    rows = [_plain(row) for row in rows]
    panels = _panels(rows)
    make_figure = installed_figure()
    if make_figure is None or not panels:
        return None
    figure = make_figure()
    columns = 2 if len(panels) == 4 else len(panels)
    lines = -(-len(panels) // columns)
    axes = _arrange(figure, columns, lines, panel=(5.5, 3.5))
    caption = "thin lines: training; thick lines: held out"
    offset = 0.12 / figure.get_figheight()  # inches from the edge
    figure.text(0.5, 1 - offset, caption, fontsize=9, color="0.35", ha="center", va="top")
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis)
        _mark_phases(axis, rows)
        axis.set_xlabel("step")
        axis.set_xlim(0, 1.05 * max(1, *(row["step"] for row in rows)))
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[len(panels) :]:
        axis.remove()
    return _save(figure, folder / CURVES)


def draw_runs(path: Path, panels: Mapping[str, Mapping[str, Sequence[Row]]]) -> Path | None:
    """Plot held-out metrics of several runs over the steps (``panels``: metric -> name of the run
    -> rows of its log); return the path, or None without matplotlib."""
    make_figure = installed_figure()
    if make_figure is None:
        return None
    figure = make_figure()
    axes = _arrange(figure, len(panels), 1, panel=(7.5, 4.5))
    for axis, (metric, runs) in zip(axes, panels.items(), strict=True):
        for number, (name, rows) in enumerate(runs.items()):
            points = _points(rows, metric, held_out=True)
            dashes = "-" if number < 10 else "--"  # colours repeat after ten runs
            axis.plot(*points, dashes, marker="o", markersize=3, label=name)
        title = shown_name(metric).replace("mlm", "MLM")
        axis.set_title(f"{title}, held out", **_TITLE)
        axis.set_xlabel("step")
        _finish(axis)
    return _save(figure, path)


def _plain(row: Row) -> Row:
    """A row whose training metrics of fine-tuning have the names of held-out metrics."""
    plain = {}
    for key, value in row.items():
        stem, _, kind = key.rpartition("_")
        ours = (
            stem.removesuffix("_majority") in PRETRAINING
            or key in (*_BASELINE_LOSSES, "no_answer_accuracy")
            or kind not in ("loss", "accuracy")
        )
        plain[key if ours else kind] = value
    return plain


def _panels(rows: Sequence[Row]) -> list[Callable[[Any], None]]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    losses = [k for k in keys if k.endswith("_loss") and k not in _BASELINE_LOSSES]
    tokens = [k for k in losses if k.removesuffix("_loss") in _TOKENS]
    others = [k for k in losses if k not in tokens]
    metrics = [k for k in keys if k in UP_TO_ONE][:_MAX_METRICS]
    shares = metrics or [k for k in keys if k.endswith("accuracy") and "majority" not in k]
    panels: list[Callable[[Any], None]] = []
    # The total loss is drawn only if there is no other loss.
    if first := tokens or ([] if others else [k for k in keys if k == "loss"]):
        panels.append(partial(_draw, rows=rows, keys=first, title="loss"))
    if shares:
        title = "metrics" if len(metrics) > 1 else "accuracy"
        panels.append(partial(_draw, rows=rows, keys=shares, title=title))
    if others:
        title = "loss of the other tasks" if tokens else "loss"
        panels.append(partial(_draw, rows=rows, keys=others, title=title))
    if "learning_rate" in keys:
        panels.append(partial(_draw_steps, rows=rows))
    return panels


def _draw(axis: Any, rows: Sequence[Row], keys: Sequence[str], title: str) -> None:
    """Draw training as thin lines, held-out data as thick ones, and baselines dashed."""
    for key in keys:
        color, label = f"C{_colour(key)}", _name(key)
        steps, values = _points(rows, key, held_out=False)
        if steps:
            axis.plot(steps, values, color=color, linewidth=0.8, alpha=0.55)
        steps, values = _points(rows, key, held_out=True)
        if steps:
            # A single point has no line, so it is larger and its value is in the legend.
            size, label = (7, f"{label} {values[0]:.3f}") if len(values) == 1 else (3.5, label)
            axis.plot(steps, values, color=color, linewidth=2, marker="o", markersize=size)
        axis.plot([], [], color=color, linewidth=2, label=label)
    if any(key.removesuffix("_loss") in _TOKENS for key in keys):
        _draw_baselines(axis, rows)
    losses = (PRETRAINING.get(key.removesuffix("_loss")) for key in keys)
    for chance in {
        objective.chance
        for objective in losses
        if objective is not None and objective.chance is not None
    }:
        _dashed(axis, chance, f"chance {chance:.2f}")
    axis.set_title(title, **_TITLE)
    _finish(axis)


def _draw_baselines(axis: Any, rows: Sequence[Row]) -> None:
    """Draw the baselines. Uniform guessing is only named if it is far above everything else (by a
    quarter of the height with the unigram baseline), because it would compress the curves."""
    unigram, uniform = (_points(rows, f"{n}_loss", held_out=True)[1][-1:] for n in _BASELINES)
    low, high = axis.get_ylim()
    low, high = min([low, *unigram]), max([high, *unigram])
    far = bool(unigram and uniform) and uniform[0] > high + (high - low) / 4
    for value in unigram:
        above = f"; uniform {uniform[0]:.2f} is above" if far else ""
        _dashed(axis, value, f"unigram {value:.2f}{above}")
    for value in uniform[: 0 if far else 1]:
        _dashed(axis, value, Message("uniform {value:.2f}", value))


def _dashed(axis: Any, value: float, label: str) -> None:
    axis.axhline(value, color="0.35", linewidth=1, linestyle="--")
    # Labelled at the right edge, because dashed lines would look alike in a legend.
    axis.annotate(
        label,
        (1, value),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="0.35",
    )


def _draw_steps(axis: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axis.plot(*_points(rows, "learning_rate", held_out=False), color="C0")
    axis.set_ylabel("learning rate", color="C0")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axis.set_ylim(bottom=0)
    axis.set_title("learning rate and gradient", **_TITLE)
    axis.grid(alpha=0.25)
    steps, norms = _points(rows, "grad_norm", held_out=False)
    if steps and min(norms) > 0:
        other = axis.twinx()
        other.plot(steps, norms, color="C3", linewidth=0.8, alpha=0.7)
        other.set_ylabel("gradient norm", color="C3")
        other.set_yscale("log")
        narrow = max(norms) < 20 * min(norms)
        other.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if narrow else (1,)))
        other.yaxis.set_minor_locator(NullLocator())
        other.yaxis.set_major_formatter("{x:g}")


def _mark_phases(axis: Any, rows: Sequence[Row]) -> None:
    """Draw a thin line with its number at the start of each phase."""
    previous = None
    for row in rows:
        phase = row.get("phase", previous)
        if previous is not None and phase != previous:
            axis.axvline(row["step"], color="0.6", linewidth=0.8, linestyle=":")
            axis.annotate(
                f"phase {phase}",
                (row["step"], 0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 4),
                textcoords="offset points",
                fontsize=7,
                color="0.45",
            )
        previous = phase


def _points(rows: Sequence[Row], key: str, *, held_out: bool) -> tuple[list[int], list[float]]:
    chosen = [row for row in rows if key in row and bool(row.get("evaluation")) == held_out]
    return [row["step"] for row in chosen], [row[key] for row in chosen]


def _name(key: str) -> str:
    objective = PRETRAINING.get(_stem(key))
    return shown_name(key) if objective is None else objective.title


def _stem(key: str) -> str:
    return key.removesuffix("_loss").removesuffix("_accuracy")


def _colour(key: str) -> int:
    """The index of a colour, the same for an objective in all panels."""
    if (objective := PRETRAINING.get(_stem(key))) is not None:
        return objective.colour
    return list(UP_TO_ONE).index(key) % 10 if key in UP_TO_ONE else 0


def _finish(axis: Any) -> None:
    axis.margins(y=0.12)
    axis.grid(alpha=0.25)
    axis.legend(**_LABELS)


def _arrange(figure: Any, columns: int, lines: int, *, panel: tuple[float, float]) -> list[Any]:
    """Axes with fixed margins for labels, in inches: matplotlib's layout engines take longer than
    drawing."""
    width, height = columns * panel[0], lines * panel[1]
    left, right, top, bottom, gap = 0.65, 0.8, 0.6, 0.55, (1.4, 0.95)
    across = (width - left - right - (columns - 1) * gap[0]) / columns
    up = (height - top - bottom - (lines - 1) * gap[1]) / lines
    figure.set_size_inches(width, height)
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=gap[0] / across,
        hspace=gap[1] / up,
    )
    return axes


def _save(figure: Any, path: Path) -> Path:
    # Lower compression: slightly larger, in a quarter of the time.
    save_figure(figure, path, 120, pil_kwargs={"compress_level": 1})
    return path
