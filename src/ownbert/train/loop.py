"""The loop: steps, the log, evaluations and saved states, for pretraining and fine-tuning alike."""

import contextlib
import copy
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ownbert.data.batch import Batch
from ownbert.data.loader import Loader, Position
from ownbert.errors import InputError
from ownbert.objectives import Objective
from ownbert.train.display import Display
from ownbert.train.log import RunLog, draw_curves
from ownbert.train.recipe import Optim, Run
from ownbert.train.schedule import factor
from ownbert.train.state import TrainState, newest

# By the clock, where steps are not given.
_SAVE_SECONDS = 300.0
_EVALUATIONS = 10


class Interrupted(KeyboardInterrupt):
    """The run was stopped from outside; its state is saved, and the message says how to go on."""


@dataclass(frozen=True)
class Watch:
    """Keep the weights of the best value of ``measure``, the latest of equal ones; end
    ``patience`` evaluations after it was first reached."""

    measure: str
    patience: int


@dataclass
class Job:
    """What ``train`` needs. ``run`` must have max_steps or max_minutes; evaluate returns measures
    of held-out data; on_save is called after each saved state."""

    state: TrainState
    loader: Loader
    objectives: Sequence[Objective]
    optim: Optim
    run: Run
    folder: Path
    evaluate: Callable[[], Mapping[str, float]]
    display: Display
    watch: Watch | None = None
    on_save: Callable[[], None] = lambda: None

    @property
    def progress(self) -> float:
        """Share of the run that is done, by steps or by the clock, whichever is further."""
        run, state = self.run, self.state
        steps = state.step / run.max_steps if run.max_steps else 0.0
        clock = state.seconds / (60 * run.max_minutes) if run.max_minutes else 0.0
        return min(1.0, max(steps, clock))


def train(job: Job, *, resume: bool = False) -> None:
    """Run to the end, or until interrupted; then log, curves and a last state are on disk.

    Raises ``Interrupted`` after a signal, ``InputError`` when the loss is no longer a number.
    """
    saved = newest(job.folder) if resume else None
    if saved is not None:
        job.state.restore(saved)
        job.display.say(f"resumed from {saved} at step {job.state.step:,}")
    log = RunLog(job.folder, step=job.state.step if saved else None)
    try:
        batches = contextlib.closing(job.loader.batches(job.state.position))
        with _signals() as stopped, job.display, batches as ahead:
            _loop(job, log, stopped, ahead)
    finally:
        log.close()
        draw_curves(job.folder, log.rows)
    if stopped:
        raise Interrupted(
            f"stopped at step {job.state.step:,}; the state is saved in {job.folder}: "
            "give the same command with --resume to go on"
        )


def _loop(
    job: Job, log: RunLog, stopped: list[int], batches: Iterator[tuple[Batch, Position]]
) -> None:
    state, run = job.state, job.run
    window, next_save = _Window(), state.seconds + _SAVE_SECONDS
    evaluated = int(job.progress * _EVALUATIONS)
    clock = time.perf_counter() - state.seconds
    while job.progress < 1 and not stopped and not _out_of_patience(job, log):
        micro = [next(batches) for _ in range(run.accumulate)]
        step = _step(job, [batch for batch, _ in micro])
        state.step += 1
        state.position = micro[-1][1]
        state.tokens += sum(batch.tokens for batch, _ in micro)
        state.seconds = time.perf_counter() - clock
        window.add(step, sum(batch.tokens for batch, _ in micro))
        row = None
        if state.step % run.log_every == 0 or job.progress >= 1:
            row = window.row(job)
            log.write(row)
            window = _Window()
        job.display.update(job.progress, row)
        if run.eval_every:
            due = state.step % run.eval_every == 0
        else:
            due = int(job.progress * _EVALUATIONS) > evaluated
        if due or job.progress >= 1:
            evaluated = int(job.progress * _EVALUATIONS)
            _evaluate(job, log)
            window.restart()
        state.seconds = time.perf_counter() - clock
        save = state.step % run.save_every == 0 if run.save_every else state.seconds >= next_save
        if save and job.progress < 1:
            next_save = state.seconds + _SAVE_SECONDS
            _save(job)
    _save(job)


def _save(job: Job) -> None:
    job.state.save(job.folder)
    job.on_save()


def _step(job: Job, micro: Sequence[Batch]) -> dict[str, tuple[Tensor, Tensor, int]]:
    """One update from micro-batches. Sums of loss and right answers, and counts, by head.

    Each objective is divided by its count over all micro-batches, so the gradient does not
    depend on how the step is cut into them.
    """
    state, device = job.state, job.state.model.device
    counts = {o.head: max(1, sum(o.count(b) for b in micro)) for o in job.objectives}
    sums: dict[str, tuple[Tensor, Tensor, int]] = {}
    state.model.train()
    for batch in micro:
        batch = batch.to(device)
        with autocast(device, job.run.precision):
            outputs = state.model(batch, [o.head for o in job.objectives if o.count(batch)])
            total = torch.zeros((), device=device)
            for objective in job.objectives:
                if not objective.count(batch):
                    continue
                loss = objective(outputs.logits[objective.head], batch)
                total = total + objective.weight * loss.total / counts[objective.head]
                old = sums.get(objective.head, (0.0, 0, 0))
                sums[objective.head] = (
                    old[0] + loss.total.detach(),
                    old[1] + loss.correct,
                    old[2] + loss.count,
                )
        total.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), job.optim.clip)
    if not torch.isfinite(norm):
        raise InputError(
            f"the loss is no longer a number at step {state.step + 1}; lower the learning rate "
            f"(--learning-rate, now {job.optim.learning_rate}) or take --precision float32"
        )
    for group in state.optimizer.param_groups:
        group["lr"] = (job.optim.learning_rate or 0.0) * factor(job.optim, job.progress)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return sums


class _Window:
    """Sums over the steps since the last logged row."""

    def __init__(self) -> None:
        self.sums: dict[str, list] = {}
        self.tokens = 0
        self.seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Leave out of the clock what was not training."""
        self.started = time.perf_counter()

    def add(self, step: Mapping[str, tuple[Tensor, Tensor, int]], tokens: int) -> None:
        now = time.perf_counter()
        self.seconds += now - self.started
        self.started = now
        self.tokens += tokens
        for name, values in step.items():
            old = self.sums.get(name, [0.0, 0, 0])
            self.sums[name] = [a + b for a, b in zip(old, values, strict=True)]

    def row(self, job: Job) -> dict[str, float]:
        state = job.state
        measures = measures_of(self.sums)
        weights = {o.head: o.weight for o in job.objectives}
        loss = sum(weights[head] * measures[f"{head}_loss"] for head in self.sums)
        return {
            "step": state.step,
            "loss": loss,
            **measures,
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "tokens_per_second": round(self.tokens / self.seconds),
            "tokens": state.tokens,
            "epoch": state.position.epoch,
            "seconds": round(state.seconds, 3),
        }


def measures_of(sums: Mapping[str, Sequence]) -> dict[str, float]:
    """Mean loss and accuracy by head out of (sum of losses, right answers, count)."""
    measures = {}
    for head, (total, correct, count) in sums.items():
        measures[f"{head}_loss"] = float(total) / max(1, count)
        measures[f"{head}_accuracy"] = float(correct) / max(1, count)
    return measures


def _evaluate(job: Job, log: RunLog) -> None:
    """Log the measures of held-out data, and keep the weights if they are the best so far."""
    state = job.state
    measures = dict(job.evaluate())
    if not measures:
        return
    row = {"step": state.step, "evaluation": True, **measures, "seconds": round(state.seconds, 3)}
    log.write(row)
    job.display.update(job.progress, row)
    if job.watch is not None:
        value = measures[job.watch.measure]
        if state.best is None or value >= state.best["value"]:
            tie = state.best is not None and value == state.best["value"]
            since = state.best["since"] if tie and state.best else state.step
            state.best = {"step": state.step, "value": value, "since": since}
            state.best_weights = copy.deepcopy(state.model.state_dict())


def _out_of_patience(job: Job, log: RunLog) -> bool:
    """Whether ``patience`` evaluations have passed since the best value was first reached."""
    if job.watch is None or job.state.best is None:
        return False
    since = job.state.best["since"]
    later = [r for r in log.rows if r.get("evaluation") and r["step"] > since]
    return len(later) >= job.watch.patience


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Matrix products in bfloat16 where ``precision`` says so; weights stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that holds the first SIGINT or SIGTERM, so that a step is never cut in two; a
    second one acts as always."""
    stopped: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        signal.signal(number, old[signal.Signals(number)])

    try:
        for number in old:
            signal.signal(number, stop)
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
