"""The loop: phases of steps, the log, evaluations and saved states, for pretraining and
fine-tuning alike."""

import contextlib
import copy
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from ownbert.data.batch import Batch
from ownbert.data.loader import Position
from ownbert.errors import InputError
from ownbert.train.curves import draw_curves
from ownbert.train.distributed import World, is_lost, ready
from ownbert.train.job import Interrupted, Job
from ownbert.train.learning import verdict
from ownbert.train.log import RunLog
from ownbert.train.meter import operations
from ownbert.train.saved import newest, remove_later, saved, step_of
from ownbert.train.schedule import factor
from ownbert.train.step import NotANumber, seed_step, step, targets

# By the clock, where steps are not given.
_SAVE_SECONDS = 300.0
_EVALUATIONS = 10


def train(job: Job, *, resume: bool = False, resume_step: int | None = None) -> None:
    """Run to the end, or until interrupted; then log, curves and a last state are on disk.

    Raises ``Interrupted`` after a signal, ``InputError`` when the loss is no longer a number,
    when another process is gone, and for a saved state that cannot be used.
    """
    path = _saved_state(job.folder, resume_step) if resume else None
    if path is not None:
        job.state.restore(path, world=job.world)
        job.display.say(f"resumed from {path} at step {job.state.step:,}")
    if job.world.first:
        remove_later(job.folder, job.state.step if path else -1)
    job.world.wait()
    log = _open_log(job, job.state.step if path else None)
    with contextlib.closing(log), _signals(job.world) as stopped, job.display:
        try:
            _Loop(job, log, stopped).run()
        except NotANumber:
            raise InputError(_not_a_number(job)) from None
        except RuntimeError as error:
            if not is_lost(error):
                raise
            raise InputError(_lost(job)) from None
        finally:
            # A picture that cannot be written must not hide why the run ended.
            with contextlib.suppress(InputError):
                if job.world.first:
                    draw_curves(job.folder, log.rows)
    if stopped:
        raise Interrupted(
            f"stopped at step {job.state.step:,}; the state is saved in {job.folder}: "
            "give the same command with --resume to go on"
        )


def _saved_state(folder: Path, step: int | None) -> Path | None:
    """The state to go on from: that of ``step``, or the last one."""
    if step is None:
        return newest(folder)
    found = {step_of(path): path for path in saved(folder)}
    if step not in found:
        known = ", ".join(map(str, found)) or "none"
        raise InputError(f"{folder} has no saved state of step {step}; there are {known}")
    return found[step]


def _micro_batches(
    batches: Iterator[tuple[Batch, Position]], count: int
) -> tuple[list[Batch], Position]:
    """The next ``count`` batches, each with all of its pieces, and the position after them."""
    found: list[Batch] = []
    while True:
        batch, after = next(batches)
        found.append(batch)
        count -= not batch.continues_step
        if not count:
            return found, after


class _Unwritten:
    """The log of a process that is not the first."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, float]] = []

    def write(self, row: Mapping[str, float]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        pass


def _open_log(job: Job, step: int | None) -> RunLog | _Unwritten:
    if not job.world.first:
        return _Unwritten()
    return RunLog(job.folder, step=step, tensorboard=job.run.tensorboard)


class _Loop:
    """One call of ``train``: what it counts between two steps."""

    def __init__(self, job: Job, log: RunLog | _Unwritten, stopped: list[int]) -> None:
        self.job, self.log, self.stopped = job, log, stopped
        self.start = time.perf_counter() - job.state.seconds
        self.next_save = job.state.seconds + _SAVE_SECONDS
        self.evaluated = int(job.progress * _EVALUATIONS)
        self.warned = False

    def run(self) -> None:
        job, state = self.job, self.job.state
        job.meter.restore(state.sums, job.world)
        while self._learn_phase() and state.phase + 1 < len(job.phases):
            state.phase += 1
            # Losses of another task are not to be compared.
            state.position, state.best = Position(), None
        self._save()

    def _learn_phase(self) -> bool:
        """Whether the phase came to its end."""
        job, state = self.job, self.job.state
        phase, learner = job.phase, self.job.state.learner
        learner.objectives = tuple(phase.objectives)
        module = ready(learner, job.world)
        with contextlib.closing(phase.loader.batches(state.position)) as batches:
            while job.progress < phase.until and not self._out_of_patience():
                micro, after = _micro_batches(batches, job.run.accumulate)
                if not self._step(module, micro, after):
                    return False
                self._after()
        return True

    def _step(self, module: nn.Module, micro: Sequence[Batch], after: Position) -> bool:
        """One update; false if the processes have agreed to stop before it."""
        job, state, world = self.job, self.job.state, self.job.world
        seconds = time.perf_counter() - self.start if world.first else 0.0
        mine = sum(0 if batch.dummy else batch.tokens for batch in micro)
        flops = operations(state.learner, micro) if job.meter.ceiling else 0.0
        stop, state.seconds, tokens, flops, *counts = world.total(
            [len(self.stopped), seconds, mine, flops, *targets(state.learner, micro)]
        )
        if stop:
            self.stopped.append(0)
            return False
        seed_step(job.seed, state.step, world)
        names = [o.name for o in state.learner.objectives]
        seen = step(
            module,
            state.optimizer,
            micro,
            {name: int(count) for name, count in zip(names, counts, strict=True)},
            optim=job.optim,
            rate=(job.optim.learning_rate or 0.0) * factor(job.optim, job.midway, state.step + 1),
            precision=job.run.precision,
            world=world,
        )
        state.step, state.position = state.step + 1, after
        if job.optim.ema:
            state.take_average(job.optim.ema)
        state.tokens += int(tokens)
        job.meter.add(seen, int(tokens), flops, world)
        return True

    def _after(self) -> None:
        """Log, evaluate and save where it is time."""
        job, state, run = self.job, self.job.state, self.job.run
        over = job.progress >= job.phase.until
        row = None
        if state.step % run.log_every == 0 or over:
            row = job.meter.row(job)
            self.log.write(row)
        job.display.update(job.progress, row)
        due = int(job.progress * _EVALUATIONS) > self.evaluated
        if run.eval_every:
            due = state.step % run.eval_every == 0
        best = False
        if due or over:
            self.evaluated = int(job.progress * _EVALUATIONS)
            with state.averaged():
                best = self._evaluate()
            job.meter.pause()
        save = state.seconds >= self.next_save
        if run.save_every:
            save = state.step % run.save_every == 0
        if (save or best) and job.progress < 1:
            self.next_save = state.seconds + _SAVE_SECONDS
            self._save()
            job.meter.pause()

    def _save(self) -> None:
        job = self.job
        job.state.sums = job.meter.saved(job.world)
        job.state.save(job.folder, keep=job.run.keep, world=job.world)
        with job.state.averaged():
            job.on_save()

    def _evaluate(self) -> bool:
        """Log the measures of held-out data; whether a state is to be saved as the best so far."""
        job, state = self.job, self.job.state
        measures = dict(job.phase.evaluate())
        if not measures:
            return False
        row = {"step": state.step, "evaluation": True, **job.numbered, **measures}
        row["seconds"] = round(state.seconds, 3)
        self.log.write(row)
        job.display.update(job.progress, row)
        said = None if self.warned else verdict(self.log.rows)
        if said:
            self.warned = True
            job.display.say(said)
        value, best = measures[job.watch.measure], state.best
        since = state.step
        if not math.isfinite(value):
            return False
        if best is not None:
            if value > best["value"] if job.watch.lower else value < best["value"]:
                return False
            if value == best["value"]:
                since = best["since"]
        state.best = {"step": state.step, "value": value, "since": since}
        if job.watch.patience is None:
            return True
        weights = state.learner.named_parameters()
        state.best_weights = {name: copy.deepcopy(p.detach()) for name, p in weights}
        return False

    def _out_of_patience(self) -> bool:
        """Whether ``patience`` evaluations have passed since the best value was first reached."""
        job = self.job
        if job.watch.patience is None or job.state.best is None:
            return False
        since = job.state.best["since"]
        later = [r for r in self.log.rows if r.get("evaluation") and r["step"] > since]
        return len(later) >= job.watch.patience


def _not_a_number(job: Job) -> str:
    path = newest(job.folder)
    kept = f"the state of step {step_of(path):,} is kept" if path else "no state was saved before"
    way = "Go on with --resume" if path else "Start again with --overwrite"
    return (
        f"the loss or its gradient is no longer a number at step {job.state.step + 1:,}; {kept}. "
        f"{way} and a lower --learning-rate (now {job.optim.learning_rate:g}), or "
        "with --precision float32"
    )


def _lost(job: Job) -> str:
    path = newest(job.folder)
    way = f"go on from step {step_of(path):,} with --resume" if path else "start again"
    return f"another process of the run ended at step {job.state.step + 1:,}; {way}"


@contextlib.contextmanager
def _signals(world: World) -> Iterator[list[int]]:
    """A list that holds the first SIGINT or SIGTERM, so that a step is never cut in two; a
    second one acts as always, but not where torchrun sends one again."""
    stopped: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        if world.size == 1:
            signal.signal(number, old[signal.Signals(number)])

    try:
        for number in old:
            signal.signal(number, stop)
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
