"""The training loop of pretraining, fine-tuning and translation.

``train`` restores a saved state and opens the log; ``_train_phases`` is the loop itself: load
micro-batches, update, log, evaluate, save.
"""

import contextlib
import copy
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ownbert.batches.batch import Batch
from ownbert.batches.loader import Loader, Position
from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.objectives import PRETRAINING
from ownbert.objectives.objective import Objective
from ownbert.threads import adapt_threads
from ownbert.time_limit import clock_seconds
from ownbert.train.display import Display
from ownbert.train.distributed import ALONE, World, data_parallel, is_lost
from ownbert.train.log import RunLog
from ownbert.train.meter import Meter, step_flops
from ownbert.train.state import SavedState, TrainState, newest_state, remove_states_after, step_of
from ownbert.train.step import NotANumber, count_targets, seed_step, step
from ownbert.train.training_curves import draw_curves
from ownbert.train.training_settings import Optim, Run, rate_factor

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Callbacks:
    """Functions called during training, in the first process; their exceptions end the run.

    Args:
        on_log: called with each row of log.jsonl with training losses, as a mapping.
        on_evaluate: called with each row with metrics of an evaluation.
        on_save: called with the folder of a saved state (in pretraining also a model folder), and
            a mapping of its step and seconds.
    """

    on_log: Callable[[Row], object] | None = None
    on_evaluate: Callable[[Row], object] | None = None
    on_save: Callable[[Path, Row], object] | None = None

    def logged(self, row: Row) -> None:
        called = self.on_evaluate if row.get("evaluation") else self.on_log
        if called is not None:
            called(dict(row))

    def saved(self, folder: Path, step: int, seconds: float) -> None:
        if self.on_save is not None:
            self.on_save(folder, {"step": step, "seconds": seconds})


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal after saving its state; the message says how to resume."""


@dataclass(frozen=True)
class Monitor:
    """The metric that determines the best weights; whether ``lower`` values are better.

    With ``patience``, training stops after this many evaluations without a new best value, and the
    best weights (the latest among equal ones) are kept in memory. Without it, the saved state of
    the best evaluation is kept.
    """

    metric: str
    lower: bool = False
    patience: int | None = None


@dataclass(frozen=True)
class Phase:
    """A part of the run with its own batches and objectives, which ends at the share ``until``, in
    (0, 1].

    ``evaluate`` returns held-out metrics; empty if there are no held-out data. ``evaluate_first``:
    also before the first step, because these weights may be best.
    """

    loader: Loader
    objectives: Sequence[Objective]
    evaluate: Callable[[], Mapping[str, float]]
    until: float = 1.0
    evaluate_first: bool = False


@dataclass
class Job:
    """Everything that ``train`` needs.

    Args:
        run: settings with max_steps or max_minutes.
        on_start: called in all processes before anything is written, after a saved state was
            restored, so that damaged states are reported first.
        on_save: called in all processes after each saved state.
        setup_seconds: time that the run spent before its loop.
    """

    state: TrainState
    phases: Sequence[Phase]
    optim: Optim
    run: Run
    folder: Path
    display: Display
    monitor: Monitor
    seed: int = 0
    world: World = ALONE
    on_start: Callable[[], None] = lambda: None
    on_save: Callable[[], None] = lambda: None
    callbacks: Callbacks = field(default_factory=Callbacks)
    meter: Meter = field(default_factory=Meter)
    with_curves: bool = True
    warned: bool = False
    setup_seconds: float = 0.0

    @property
    def progress(self) -> float:
        """The completed share of the run, by steps or by time, whichever is larger."""
        return self.progress_at(self.state.step, self.state.seconds)

    def progress_at(self, step: int, seconds: float) -> float:
        """``progress`` after this many steps and seconds."""
        return min(1.0, max(self._by_steps(step), self._by_time(seconds)))

    @property
    def limited_by_time(self) -> bool:
        """Whether the time limit will end the run before the step limit."""
        return self._by_time(self.state.seconds) > self._by_steps(self.state.step)

    def _by_steps(self, step: int) -> float:
        return step / self.run.max_steps if self.run.max_steps else 0.0

    def _by_time(self, seconds: float) -> float:
        if not self.run.max_minutes:
            return 0.0
        limit = 60 * self.run.max_minutes
        # At least half of the time is for training, however long the rest takes.
        return seconds / max(limit / 2, limit - self.state.reserved)

    @property
    def midway(self) -> float:
        """Progress in the middle of the next step, for the learning rate: that at the beginning of
        the first step would give a rate of 0."""
        ahead = 0.5 / self.run.max_steps if self.run.max_steps else 0.0
        return min(1.0, self.progress + ahead)

    @property
    def phase_number(self) -> dict[str, int]:
        """The phase number for log rows, from 1; empty if there is only one phase."""
        return {"phase": self.state.phase + 1} if len(self.phases) > 1 else {}


# Defaults: seconds between saves, and evaluations per run.
_SAVE_SECONDS = 300.0
EVALUATIONS = 10
# Maximum share of evaluations in the time of a run, and the time of a forward pass relative to
# training on the same tokens.
_EVALUATION_SHARE, _FORWARD = 0.2, 1 / 3
# After this many tokens a run should know more than token frequencies. Every measured run (tiny,
# mini, small; anonymised news, English, Chinese; initialised and random embeddings) was 2.5 % below
# the unigram loss after 0.2 million tokens and 4 % after 0.4 million.
ENOUGH_TOKENS = 1_000_000
# With large batches a million tokens are too few steps for any run.
ENOUGH_STEPS = 200
# Required distance below the unigram loss. It is relative, because how much can be learnt depends
# on the text; a unigram model stays within 0.3 %.
MARGIN = 0.02


def train(job: Job, *, resume_from: SavedState | None = None) -> None:
    """Train to the end or until interrupted; log, curves and the last state are then on disk.

    Raises:
        Interrupted: after a signal.
        InputError: the loss is not finite, another process has terminated, or the saved state
            cannot be used.
    """
    if resume_from is not None:
        job.state.restore(resume_from, world=job.world)
        job.display.say("resumed from {path} at step {step:,}", resume_from.path, job.state.step)
    job.on_start()
    if job.world.first:
        remove_states_after(job.folder, job.state.step if resume_from else -1)
    job.world.wait()
    log = RunLog(
        job.folder,
        step=job.state.step if resume_from else None,
        tensorboard=job.run.tensorboard,
        writes=job.world.first,
    )
    with contextlib.closing(log), _signals(job.world) as stop_signals, job.display:
        try:
            _train_phases(job, log, stop_signals)
        except NotANumber:
            raise InputError(_not_a_number(job)) from None
        except RuntimeError as error:
            if not is_lost(error):
                raise
            raise InputError(_lost_process_message(job)) from None
        finally:
            # A failing plot must not hide why the run ended.
            with contextlib.suppress(InputError):
                if job.world.first and job.with_curves:
                    draw_curves(job.folder, log.rows)
    if stop_signals:
        raise Interrupted(
            Message(
                "stopped at step {step:,}; the state is saved in {folder}: continue with the "
                "same command and {--resume}",
                job.state.step,
                job.folder,
            )
        )


def _train_phases(job: Job, log: RunLog, stop_signals: list[int]) -> None:
    """Train all phases from ``job.state`` on, and save the last state. Longer than other functions,
    so that a training can be read from top to bottom."""
    state, run, world, learner = job.state, job.run, job.world, job.state.learner
    start = clock_seconds() - state.seconds
    next_save = state.seconds + _SAVE_SECONDS
    evaluations_done = int(job.progress * EVALUATIONS)
    evaluation_clock = EvaluationClock(state.seconds)
    job.meter.restore(state.sums, world)
    stopped = False

    for number in range(state.phase, len(job.phases)):
        if number > state.phase:
            # Data start again, and losses of different objectives are not comparable.
            state.phase, state.position, state.best = number, Position(), None
        phase = job.phases[number]
        if phase.evaluate_first and not state.step:
            _evaluate(job, log, phase)
        module = data_parallel(learner, phase.objectives, world)
        with contextlib.closing(phase.loader.batches(state.position)) as batches:
            while job.progress < phase.until and not out_of_patience(job, log.rows):
                micro_batches, position = _next_micro_batches(batches, run.accumulate)

                # Stop flag, clock and counts, summed over all processes.
                seconds = clock_seconds() - start if world.first else 0.0
                tokens = sum(0 if batch.dummy else batch.tokens for batch in micro_batches)
                flops = 0.0
                if job.meter.peak_flops:
                    flops = step_flops(learner, phase.objectives, micro_batches)
                counts = count_targets(phase.objectives, micro_batches)
                reserved = job.setup_seconds + evaluation_clock.longest if world.first else 0.0
                stop, state.seconds, reserved, tokens, flops, *counts = world.total(
                    [len(stop_signals), seconds, reserved, tokens, flops, *counts]
                )
                state.reserved = max(state.reserved, reserved)
                if stopped := bool(stop):
                    stop_signals.append(0)  # for processes without a signal
                    break

                # Update. Runs limited by steps or epochs must be reproducible: fixed threads.
                if not run.max_steps:
                    adapt_threads()
                names = [objective.name for objective in phase.objectives]
                seed_step(job.seed, state.step, world)
                stats = step(
                    module,
                    state.optimizer,
                    micro_batches,
                    {name: int(count) for name, count in zip(names, counts, strict=True)},
                    objectives=phase.objectives,
                    optim=job.optim,
                    rate=(job.optim.learning_rate or 0.0)
                    * rate_factor(job.optim, job.midway, state.step + 1),
                    precision=run.precision,
                    world=world,
                )
                state.step, state.position = state.step + 1, position
                state.tokens += int(tokens)
                if job.optim.ema:
                    state.take_average(job.optim.ema)
                job.meter.add(stats, int(tokens), flops, world)
                phase_over = job.progress >= phase.until

                # Log.
                row = None
                if state.step % run.log_every == 0 or phase_over:
                    row = job.meter.row(state, phase.objectives, world, job.phase_number)
                    _write(job, log, row)
                job.display.update(job.progress, row)

                # Evaluate.
                is_best = False
                if run.eval_every:
                    due = state.step % run.eval_every == 0
                else:
                    due = int(job.progress * EVALUATIONS) > evaluations_done
                if due and not phase_over and job.limited_by_time:
                    in_time = evaluation_clock.has_time(state.seconds) and world.first
                    due = bool(world.total([in_time])[0])
                if phase_over or due:
                    evaluations_done = int(job.progress * EVALUATIONS)
                    with evaluation_clock.measure():
                        is_best = _evaluate(job, log, phase)

                # Save.
                if run.save_every:
                    due = state.step % run.save_every == 0
                else:
                    due = state.seconds >= next_save
                if (due or is_best) and job.progress < 1:
                    next_save = state.seconds + _SAVE_SECONDS
                    _save(job)
                    job.meter.pause()
        # Not stop_signals: only one process may know of a signal after the last step.
        if stopped:
            break
    _save(job, interim=stopped)


def _next_micro_batches(
    batches: Iterator[tuple[Batch, Position]], count: int
) -> tuple[list[Batch], Position]:
    """The next ``count`` batches, each with all of its pieces, and the loader position after
    them."""
    micro_batches: list[Batch] = []
    while True:
        batch, position = next(batches)
        micro_batches.append(batch)
        count -= not batch.continues_step
        if not count:
            return micro_batches, position


def _evaluate(job: Job, log: RunLog, phase: Phase) -> bool:
    """Evaluate the weights that would be used (the running mean, if any); whether they are best."""
    is_best = False
    with job.state.averaged():
        if metrics := phase.evaluate():
            row = {"step": job.state.step, "evaluation": True, **job.phase_number, **metrics}
            row["seconds"] = round(job.state.seconds, 3)
            _write(job, log, row)
            job.display.update(job.progress, row)
            if not job.warned and (warning := diagnose_stagnation(log.rows)):
                job.warned = True
                job.display.say(warning)
            is_best = _keep_best(job, metrics)
    job.meter.pause()
    return is_best


def _save(job: Job, *, interim: bool = False) -> None:
    """Save the state and, by ``job.on_save``, the model folder."""
    job.state.sums = job.meter.collect(job.world)
    job.state.save(job.folder, keep=job.run.keep, world=job.world, interim=interim)
    with job.state.averaged():
        job.on_save()
    if job.world.first:
        job.callbacks.saved(job.folder, job.state.step, job.state.seconds)


def _write(job: Job, log: RunLog, row: Mapping[str, Any]) -> None:
    log.write(row)
    if job.world.first:
        job.callbacks.logged(row)


def _keep_best(job: Job, metrics: Mapping[str, float]) -> bool:
    """Record the best evaluation so far; return whether its state must be saved now."""
    state, monitor = job.state, job.monitor
    value, best, since = metrics[monitor.metric], state.best, state.step
    if not math.isfinite(value):
        return False
    if best is not None:
        if value > best["value"] if monitor.lower else value < best["value"]:
            return False
        if value == best["value"]:
            since = best["since"]
    state.best = {"step": state.step, "value": value, "since": since}
    if monitor.patience is None:
        return True
    weights = state.learner.named_parameters()
    state.best_weights = {name: copy.deepcopy(p.detach()) for name, p in weights}
    return False


def out_of_patience(job: Job, rows: list[dict[str, Any]]) -> bool:
    """Whether ``patience`` evaluations have passed since the best value was first reached.

    Evaluations during warm-up do not count: a new model may need all of it to learn anything.
    """
    if job.monitor.patience is None or job.state.best is None:
        return False
    since, warmup = job.state.best["since"], job.optim.warmup
    later = [row for row in rows if row.get("evaluation") and row["step"] > since]
    counted = sum(job.progress_at(row["step"], row["seconds"]) > warmup for row in later)
    return counted >= job.monitor.patience


def _not_a_number(job: Job) -> str:
    kept, advice = Message("no state was saved before"), Message("Start again with {--overwrite}")
    if path := newest_state(job.folder):
        kept = Message("the state of step {step:,} is kept", step_of(path))
        advice = Message("Continue with {--resume}")
    return Message(
        "the loss or its gradient is not finite at step {step:,}; {kept}. {advice} and a "
        "lower {--learning-rate} (now {learning_rate:g}), or with {--precision float32}",
        job.state.step + 1,
        kept,
        advice,
        job.optim.learning_rate,
    )


def _lost_process_message(job: Job) -> str:
    advice = Message("start again")
    if path := newest_state(job.folder):
        advice = Message("continue from step {step:,} with {--resume}", step_of(path))
    return Message(
        "another process of the run ended at step {step:,}; {advice}", job.state.step + 1, advice
    )


@contextlib.contextmanager
def _signals(world: World) -> Iterator[list[int]]:
    """Yield a list that collects SIGINT and SIGTERM, so that steps are not interrupted; a second
    signal acts as usual, except under torchrun, which sends signals twice."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        received.append(number)
        if world.size == 1:
            signal.signal(number, previous[signal.Signals(number)])

    try:
        for number in previous:
            signal.signal(number, stop)
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def affordable_tokens(trained: float) -> float:
    """Maximum tokens of an evaluation, given the tokens trained between evaluations; independent of
    the clock, so that a run limited by steps is reproducible."""
    return trained * _EVALUATION_SHARE / (1 - _EVALUATION_SHARE) / _FORWARD


class EvaluationClock:
    """Total time of evaluations since the loop was at ``start`` seconds; a run limited by time may
    skip evaluations."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.total = self.last = self.longest = 0.0

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        begin = clock_seconds()
        yield
        self.last = clock_seconds() - begin
        self.total += self.last
        self.longest = max(self.longest, self.last)

    def has_time(self, seconds: float) -> bool:
        """Whether there is time for an evaluation now, besides the final one; ``seconds``: time of
        the loop so far. The first evaluation, of unknown duration, may always start."""
        return self.total + 2 * self.last <= _EVALUATION_SHARE * (seconds - self.start)


def diagnose_stagnation(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning of two lines if the run does not seem to learn: if the loss of the last evaluation
    is not below its ``unigram_loss``, that of a model that knows only token frequencies. Else
    None."""
    last = next((row for row in reversed(rows) if row.get("evaluation")), {})
    trained = [row for row in rows if not row.get("evaluation") and "tokens" in row]
    predicting = (name for name, objective in PRETRAINING.items() if objective.predicts)
    name = next((name for name in predicting if f"{name}_loss" in last), "mlm")
    if not last.keys() >= {f"{name}_loss", "unigram_loss"} or not trained:
        return None
    tokens, steps = trained[-1]["tokens"], last["step"]
    loss, unigram = last[f"{name}_loss"], last["unigram_loss"]
    if tokens < ENOUGH_TOKENS or steps < ENOUGH_STEPS or loss < (1 - MARGIN) * unigram:
        return None
    worse = not loss < (1 + MARGIN) * unigram  # also true for NaN
    rates = [row.get("learning_rate", 0.0) for row in trained]
    rising = len(rates) > 1 and rates[-1] > max(rates[:-1])
    if rising and not math.isclose(rates[-1], rates[-2]) and not worse:
        return None  # still warming up: learning may not have started
    finding = (
        "is worse than word frequencies alone" if worse else "has learnt only word frequencies"
    )
    return Message(
        "not learning: after {tokens:,} tokens the model {finding!t} (held-out {name} "
        "loss {loss:.2f}, unigram baseline {unigram:.2f})\n{advice}",
        *(tokens, finding, name.upper(), loss, unigram, _advice(max(rates), worse)),
    )


def _advice(rate: float, worse: bool) -> str:
    """The usual causes, most likely first."""
    high = "too high" if worse else "too high or too low"
    current = Message(", now {rate:.2g}", rate) if rate else ""
    return Message(
        "usual causes: a learning rate that is {high} ({--learning-rate}{current}); batches "
        "that are too small ({--batch-tokens}, {--accumulate}); a corpus of duplicates, or "
        "of tokens without any order; masks that leave too little context ({--mask-rate}, "
        "BERT uses 0.15)",
        high,
        current,
    )
