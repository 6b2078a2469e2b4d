"""Progress of a run: a live bar on a terminal, an occasional line otherwise."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.objectives import PRETRAINING
from ownbert.terminal import console, notebook_output
from ownbert.train.metric_names import UP_TO_ONE, shown_name, shown_value

# Seconds between lines without a terminal.
_LINE_SECONDS = 15.0
_DAY = 24 * 3600.0
# Minimum width of the bar, in characters; it fills the line.
_BAR = 10

# Maximum number of fine-tuning metrics on a line.
_MAX_METRICS = 3


class Display:
    """Shows progress, remaining time, and the numbers of the last log rows."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.console = console(soft_wrap=True)
        self.cell = None if quiet else notebook_output()
        self.live: Live | None = None
        self.lines = _Lines(title)
        self.training: Mapping[str, Any] = {}
        self.held_out: Mapping[str, Any] = {}
        self.last_line = 0.0
        self.started = 0.0
        self.first: float | None = None

    def __enter__(self) -> "Display":
        if self.console.is_terminal and not self.quiet:
            self.live = Live(self.lines, console=self.console)
            self.live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def update(self, progress: float, row: Mapping[str, Any] | None = None) -> None:
        """Show the progress; called after every step."""
        if self.quiet:
            return
        if self.first is None:
            self.first, self.started = progress, time.monotonic()
        left = self._time_left(progress)
        if row is not None and row.get("evaluation"):
            self.held_out = row
        elif row is not None:
            self.training = row
        if self.training:
            self.lines.numbers = live_parts(self.training, self.held_out)
        self.lines.pace = list(map(translated, _speed_parts(self.training)))
        self.lines.progress, self.lines.left = progress, left
        if self.cell is not None and row is not None:
            self.cell.status("  ".join([f"{self.title} {progress:4.0%}", left, describe(row)]))
        # Evaluations are printed permanently, above the bar if there is one.
        now, has_bar = time.monotonic(), self.live is not None or self.cell is not None
        due = not has_bar and now - self.last_line >= _LINE_SECONDS
        if row is not None and (row.get("evaluation") or due):
            self.last_line = now if due else self.last_line
            self.say("  ".join([f"{self.title} {progress:4.0%}", left, describe(row)]))

    def say(self, text: str, /, *values: Any) -> None:
        if self.cell is not None:
            self.cell.say(translated(text, *values))
        elif not self.quiet:
            self.console.print(translated(text, *values), markup=False)

    def _time_left(self, progress: float) -> str:
        done = progress - (self.first or 0.0)
        if done <= 0:
            return translated("--:-- left")
        seconds = (time.monotonic() - self.started) * (1 - progress) / done
        ends = Message(", ends {time}", clock(seconds)) if progress < 1 else ""
        return translated("{duration} left{ends}", duration(seconds), ends)


class _Lines:
    """The live display: one line for progress and speed, one for metrics, each with as many parts
    as fit."""

    def __init__(self, title: str) -> None:
        self.title, self.progress, self.left = title, 0.0, ""
        self.pace: Sequence[str] = ()
        self.numbers: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, start = options.max_width, f"{self.title} "
        rest = fitting([f"{self.progress:5.0%}", self.left, *self.pace], width - len(start) - _BAR)
        length = max(_BAR, width - len(start) - len(rest))
        full = round(self.progress * length)
        bar = (("━" * full, "green"), ("━" * (length - full), "bright_black"))
        yield Text.assemble(start, *bar, rest, no_wrap=True, overflow="crop")
        yield Text(fitting(self.numbers, width), no_wrap=True, overflow="crop")


def fitting(parts: Sequence[str], width: int) -> str:
    """As many of the first ``parts`` as fit in ``width`` characters."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line


def describe(row: Mapping[str, Any]) -> str:
    """The numbers of a log row as one line."""
    names = _names(row)
    parts = [*_place(row), *(["held out"] if row.get("evaluation") else [])]
    if "loss" in row and len(names) != 1:  # the loss of a single objective is not repeated
        parts.append(Message("loss {row:.3f}", row["loss"]))
    parts += [*(_objective(row, name) for name in names), *_metrics(row), *_speed_parts(row)]
    return "  ".join(map(translated, parts))


def live_parts(row: Mapping[str, Any], held_out: Mapping[str, Any]) -> list[str]:
    """The training loss and held-out metrics, most important first; before the first evaluation,
    training metrics."""
    shown = held_out or row
    parts = [*_place(row), *([Message("loss {row:.3f}", row["loss"])] if "loss" in row else [])]
    first = len(parts)
    for name in _names(shown):
        objective = PRETRAINING.get(name)
        if objective is not None:
            parts.append(f"{objective.short} {shown[f'{name}_loss']:.3f}")
        if objective is not None and objective.predicts and "unigram_loss" in shown:
            parts.append(Message("unigram {options:.2f}", shown["unigram_loss"]))
        if f"{name}_accuracy" in shown:
            parts.append(Message("{options:.1%} correct", shown[f"{name}_accuracy"]))
    parts += _metrics(shown)
    if "uniform_loss" in shown:
        parts.append(Message("uniform {options:.2f}", shown["uniform_loss"]))
    if held_out and len(parts) > first:
        parts[first] = Message("held out: {parts}", parts[first])
    return list(map(translated, parts))


def duration(seconds: float) -> str:
    """Format as 05:07, or 1:05:07 from one hour on."""
    seconds = max(0, round(seconds))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    rest = f"{minutes:02d}:{seconds % 60:02d}"
    return f"{hours}:{rest}" if hours else rest


def clock(seconds: float) -> str:
    """The time of day ``seconds`` from now, with the date unless it is today."""
    then = time.localtime(time.time() + seconds)
    near = seconds < _DAY and then.tm_mday == time.localtime().tm_mday
    return time.strftime("%H:%M" if near else "%a %d %b %H:%M", then)


def _place(row: Mapping[str, Any]) -> list[str]:
    if "phase" in row:
        return [Message("step {step:,} of phase {phase}", row["step"], row["phase"])]
    return [Message("step {step:,}", row["step"])]


def _names(row: Mapping[str, Any]) -> list[str]:
    return [
        key.removesuffix("_loss")
        for key in row
        if key.endswith("_loss") and key not in ("unigram_loss", "uniform_loss")
    ]


def _metrics(row: Mapping[str, Any]) -> list[str]:
    names = [key for key in row if key in UP_TO_ONE or key == "mae"][:_MAX_METRICS]
    return [
        Message("{metric!t} {value}", shown_name(name), shown_value(name, row[name]))
        for name in names
    ]


def _objective(row: Mapping[str, Any], name: str) -> str:
    objective = PRETRAINING.get(name)  # the single objective of fine-tuning has no name
    short = "loss" if objective is None else objective.short
    text = Message("{name!t} {value:.3f}", short, row[f"{name}_loss"])
    baselines = [
        Message(template, row[key])
        for template, key in (
            ("unigram baseline {value:.3f}", "unigram_loss"),
            ("uniform baseline {value:.3f}", "uniform_loss"),
        )
        if objective is not None and objective.predicts and key in row
    ]
    if baselines:
        text += Message(" ({baselines})", baselines)
    accuracy, majority = row.get(f"{name}_accuracy"), row.get(f"{name}_majority_accuracy")
    if accuracy is not None:
        text += Message(" accuracy {accuracy:.1%}", accuracy)
    return (
        text
        if majority is None
        else Message("{text} (majority baseline {majority:.1%})", text, majority)
    )


def _speed_parts(row: Mapping[str, Any]) -> list[str]:
    parts = []
    if "tokens_per_second" in row:
        parts.append(Message("{row:,.0f} tokens/s", row["tokens_per_second"]))
    if "mfu" in row:
        parts.append(f"MFU {row['mfu']:.0%}")
    if "grad_norm" in row:
        parts.append(Message("gradient norm {row:.2g}", row["grad_norm"]))
    return parts
