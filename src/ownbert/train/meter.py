"""Statistics for the next log row: sums over steps, tokens, FLOPs and time."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.layers import multiply, onednn_has_linear
from ownbert.nn.model import Model
from ownbert.nn.multihead import CrossAttention, MultiHeadAttention
from ownbert.nn.output_heads import MaskedLMHead
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Loss, Objective, unmasked
from ownbert.time_limit import clock_seconds
from ownbert.train.distributed import World
from ownbert.train.state import TrainState
from ownbert.train.step import StepStats, add

# Key of (sum of gradient norms, 0, number of steps); the other keys are names of objectives.
_NORM = "grad_norm"


class Meter:
    """Sums since the last log row; ``peak_flops``: measured matmul peak of all processes in FLOP
    per second, 0 if not measured."""

    def __init__(self, peak_flops: float = 0.0) -> None:
        self.peak_flops = peak_flops
        self.sums: dict[str, list] = {}
        self._clear()

    def _clear(self) -> None:
        self.sums = {}
        self.tokens, self.flops, self.seconds = 0, 0.0, 0.0
        self.pause()

    def pause(self) -> None:
        """Restart the clock, to exclude evaluations and saves from the training time."""
        self.started = clock_seconds()

    def add(self, stats: StepStats, tokens: int, flops: float, world: World) -> None:
        """Add a step; ``tokens`` and ``flops`` are totals of all processes."""
        now = clock_seconds()
        self.seconds += now - self.started
        self.started = now
        self.tokens += tokens
        self.flops += flops
        # The norm is equal in all processes, so it is counted once.
        norm = (stats.norm, 0, 1) if world.first else (0.0, 0, 0)
        for name, values in {**stats.sums, _NORM: norm}.items():
            add(self.sums, name, values)

    def collect(self, world: World) -> dict[str, list[float]]:
        """Move the sums of all processes to the first one, and return them for a saved state; a run
        resumed from the state then adds in the same order."""
        total = self._total(world)
        self._set_sums(total, world)
        return total

    def restore(self, sums: Mapping[str, Sequence[float]], world: World) -> None:
        """Continue with the sums of a saved state."""
        self._clear()
        self._set_sums(sums, world)

    def _set_sums(self, total: Mapping[str, Sequence[float]], world: World) -> None:
        self.sums = {n: list(v) if world.first else [0.0, 0, 0] for n, v in total.items()}

    def _total(self, world: World) -> dict[str, list[float]]:
        names = sorted(self.sums)
        flat = [float(value) for name in names for value in self.sums[name]]
        flat = world.total(flat) if flat else []
        return {name: flat[3 * i : 3 * i + 3] for i, name in enumerate(names)}

    def row(
        self,
        state: TrainState,
        objectives: Sequence[Objective],
        world: World,
        phase_number: Mapping[str, int],
    ) -> dict[str, float]:
        """The log row for the steps since the last row; resets the sums."""
        sums = self._total(world)
        norm, _, steps = sums.pop(_NORM)
        metrics = mean_metrics(sums, objectives)
        loss = sum(o.weight * metrics[f"{o.name}_loss"] for o in objectives)
        row = {
            "step": state.step,
            **phase_number,
            "loss": loss,
            **metrics,
            "grad_norm": norm / max(1, steps),
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "tokens_per_second": round(self.tokens / self.seconds),
        }
        if self.peak_flops:
            row["mfu"] = round(self.flops / self.seconds / self.peak_flops, 4)
        self._clear()
        seconds = round(state.seconds, 3)
        return row | {"tokens": state.tokens, "epoch": state.position.epoch, "seconds": seconds}


def mean_metrics(sums: Mapping[str, Sequence], objectives: Sequence[Objective]) -> dict[str, float]:
    """Mean loss of each objective, and accuracy where defined, from (sum of losses, correct,
    count)."""
    metrics = {}
    for objective in objectives:
        total, correct, count = sums[objective.name]
        metrics[f"{objective.name}_loss"] = float(total) / max(1, count)
        if objective.counts_correct:
            metrics[f"{objective.name}_accuracy"] = float(correct) / max(1, count)
    return metrics


def add_up(sums: dict[str, list], losses: Mapping[str, Loss]) -> None:
    for name, loss in losses.items():
        add(sums, name, (float(loss.total), int(loss.correct), loss.count))


# Sizes of the square matrices for measuring the peak: few threads are fastest if everything fits in
# their caches, many need more work; and short products are less likely to be disturbed by other
# programs.
_SIDES = {"cpu": (512, 1536), "cuda": (8192,)}


def step_flops(
    learner: Learner, objectives: Sequence[Objective], micro_batches: Sequence[Batch]
) -> float:
    """FLOPs of the matrix products of a step in this process, forward and backward. The output
    matrix counts with the words of the softmax; if these are sampled, with their expected
    number."""
    flops = 0.0
    for batch in micro_batches:
        if batch.dummy:
            continue
        words = None
        if learner.sampler is not None:
            words = learner.sampler.expected(unmasked(batch), batch.token_ids)
        for view in {o.input_view for o in objectives}:
            model, rows = learner.model_of(view), Counter()
            for objective in objectives:
                if objective.input_view == view:
                    for part in objective.parts(model):
                        rows[part] += objective.count(batch)
            sources = None if batch.source is None else batch.source.layout.lengths
            flops += training_flops(model, batch.layout.lengths, rows, sources=sources, words=words)
    return flops


def training_flops(
    model: Model,
    lengths: Sequence[int],
    rows: Mapping[nn.Module, int],
    *,
    sources: Sequence[int] | None = None,
    words: float | None = None,
) -> float:
    """FLOPs of a forward and a backward pass over sequences of these lengths.

    Only products of tokens count, without padding and recomputation; causal attention counts all
    pairs. The backward pass has two products for each product of the forward pass.

    Args:
        rows: number of rows that each head and the pooler compute; other modules are ignored.
        sources: for an encoder-decoder model, the lengths of the encoder's sequences.
        words: number of words in the softmax, by default the vocabulary.
    """
    above = {part: n for part, n in rows.items() if part not in (model.encoder, model.decoder)}
    products = sum(2 * n * _head_weights(part, words) for part, n in above.items())
    # XLNet has a second stream, with a row for each predicted token.
    predicted = 0 if model.encoder.embeddings.mask is None else sum(above.values())
    if model.decoder is None:
        products += _stack_products(model.encoder, lengths, predicted=predicted)
    else:
        sources = lengths if sources is None else sources
        products += _stack_products(model.encoder, sources)
        products += _stack_products(model.decoder, lengths, sources=sources)
    return 3.0 * products


def _stack_products(
    stack: Encoder, lengths: Sequence[int], *, predicted: int = 0, sources: Sequence[int] = ()
) -> float:
    """FLOPs of a forward pass through an encoder or decoder."""
    tokens, streams = sum(lengths) + predicted, 2 if predicted else 1
    products = 2 * tokens * _weights(stack.embeddings)
    for block, _ in stack.schedule():
        attention: MultiHeadAttention = block.attention  # pyright: ignore
        # Weights of distances multiply vectors of distances, which are few.
        others = [*getattr(block, "unused", ()), *([attention.bias] if attention.bias else [])]
        products += 2 * tokens * (_weights(block) - sum(map(_weights, others)))
        # Queries by keys, weights by values, and in XLNet queries by distances.
        pairs = streams * sum(_pairs(n, attention.window) for n in lengths)
        distances = getattr(attention.bias, "distances_per_pair", 0)
        products += (4 + 2 * distances) * pairs * attention.width
        if sources:
            cross: CrossAttention = block.cross_attention  # pyright: ignore
            pairs = sum(n * m for n, m in zip(lengths, sources, strict=True))
            products += 2 * (sum(sources) - tokens) * _weights(cross.key_value)
            products += 4 * pairs * cross.width
    return products


def _pairs(length: int, window: int | None) -> int:
    """Number of query-key pairs in the attention of a sequence."""
    if window is None or window >= length - 1:
        return length * length
    return length * (2 * window + 1) - window * (window + 1)


def _weights(module: nn.Module) -> int:
    """Number of elements of the matrices of a module."""
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def _head_weights(head: nn.Module, words: float | None) -> float:
    """Number of elements of the matrices that a row of a head is multiplied by."""
    weights = _weights(head)
    if words is None or not isinstance(head, MaskedLMHead):
        return weights
    rest = head.decoder_rest
    output = head.decoder.weight.numel() + (0 if rest is None else rest.weight.numel())
    return weights - output * (1 - words / head.decoder.out_features)


@torch.no_grad()
def matmul_rate(
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    seconds: float = 0.3,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the matmul peak in FLOP per second: the rate of the fastest of the large matrix
    products that fit in ``seconds``, with the number of threads that torch uses."""
    device = torch.device(device)
    products: list[tuple[int, Callable[[], Tensor]]] = []
    for side in _SIDES.get(device.type, _SIDES["cpu"]):
        a = torch.ones(side, side, device=device, dtype=dtype)
        products.append((2 * side**3, partial(torch.mm, a, a)))
        if device.type == "cpu" and onednn_has_linear(dtype):
            products.append((2 * side**3, partial(multiply, a, a, None)))
    for _, product in products:  # warm-up
        product()
    best, end = 0.0, clock() + seconds
    while True:
        for operations, product in products:
            _synchronize(device)
            start = clock()
            product()
            _synchronize(device)
            best = max(best, operations / (clock() - start))
        if clock() > end:
            return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
