"""A pretraining step of OwnBERT and of Transformers, from the same weights and sequences.

T tokens, B sequences, S longest sequence, M masked tokens.
"""

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.config.encoder import SIZES

VOCABULARY, BLOCK, MASKED = 30_522, 128, 0.15
# Ids below are special tokens in BERT's vocabulary.
FIRST_WORD, MASK = 999, 103


@dataclass(frozen=True)
class Text:
    """The sequences of one step: ids, masked positions and the original ids there."""

    ids: list[np.ndarray]
    places: list[np.ndarray]
    targets: list[np.ndarray]

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.ids]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def masked(self) -> int:
        return sum(len(places) for places in self.places)


def make_text(rng: np.random.Generator, lengths: np.ndarray, vocabulary: int = VOCABULARY) -> Text:
    """Random words, 15 % of them masked (80 % [MASK], 10 % a random word, 10 % unchanged)."""
    text = Text([], [], [])
    for length in lengths:
        ids = rng.integers(FIRST_WORD, vocabulary, length)
        places = np.sort(rng.choice(length, max(1, round(MASKED * length)), replace=False))
        text.places.append(places)
        text.targets.append(ids[places].copy())
        draw = rng.random(len(places))
        other = rng.integers(FIRST_WORD, vocabulary, len(places))
        ids[places] = np.where(draw < 0.8, MASK, np.where(draw < 0.9, other, ids[places]))
        text.ids.append(ids)
    return text


def their_model(size: str, dropout: float, folder: Path) -> Any:
    """A randomly initialised BertForMaskedLM of Transformers, also saved in ``folder``."""
    from transformers import BertConfig, BertForMaskedLM

    layers, hidden, heads = SIZES[size]
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = BertForMaskedLM(config)
    model.save_pretrained(folder)
    return model


class Transformers:
    """BertForMaskedLM on batches padded to the longest sequence, as it is usually trained."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.device = model.to(device).train(), device
        decay = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)

    def batch(self, text: Text, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Padded tensors (B, S); a batch without padding has no attention mask."""
        size = len(text.ids), max(text.lengths)
        ids, mask = np.zeros(size, np.int64), np.zeros(size, np.int64)
        labels = np.full(size, -100, np.int64)
        for b, (own, places, targets) in enumerate(
            zip(text.ids, text.places, text.targets, strict=True)
        ):
            ids[b, : len(own)], mask[b, : len(own)] = own, 1
            labels[b, places] = targets
        arrays = {"input_ids": ids, "labels": labels}
        if not mask.all():
            arrays["attention_mask"] = mask
        return {name: torch.from_numpy(a).to(self.device) for name, a in arrays.items()}

    def loss(self, batch: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            return self.model(**batch).loss


class OwnBERT:
    """A model of OwnBERT's, with the components that ``ownbert pretrain`` uses.

    With ``sampled`` words are compared with some others, as it does by default on a CPU.
    """

    def __init__(self, model: Any, device: torch.device, *, sampled: bool = False) -> None:
        from ownbert.batches.sampled_softmax import CandidateSampler
        from ownbert.objectives import MaskedLM
        from ownbert.objectives.learner import Learner
        from ownbert.train.optimizers import make_optimizer
        from ownbert.train.training_settings import Optim

        self.model, self.device = model.to(device).train(), device
        even = torch.zeros(VOCABULARY, device=device)
        even[FIRST_WORD:] = 1 / (VOCABULARY - FIRST_WORD)
        sampler = CandidateSampler(even) if sampled else None
        self.learner = Learner(self.model, [MaskedLM()], sampler=sampler)
        self.optimizer = make_optimizer(self.model, Optim(learning_rate=1e-4))

    def batch(self, text: Text, dtype: torch.dtype) -> Any:
        from ownbert.batches.batch import Example, pack

        parts = zip(text.ids, text.places, text.targets, strict=True)
        batch = pack([Example(ids, np.zeros_like(ids), at, what) for ids, at, what in parts])
        # In training, the loader's thread computes this, in the precision of the run.
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            _ = batch.layout.grouping
        return batch.to(self.device)

    def loss(self, batch: Any, dtype: torch.dtype) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            found = self.learner(batch)["mlm"]
            return found.total / found.count


def step(way: OwnBERT | Transformers, batches: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """One update by the mean of the losses of ``batches``; returns it, as it was before."""
    from ownbert.nn.accumulation import one_update

    total = torch.zeros((), device=way.device)
    # As ``ownbert.train.step`` does; of no effect on Transformers.
    with one_update() if len(batches) > 1 else nullcontext():
        for batch in batches:
            loss = way.loss(batch, dtype) / len(batches)
            loss.backward()
            total = total + loss.detach()
    torch.nn.utils.clip_grad_norm_(way.model.parameters(), 1.0)
    way.optimizer.step()
    way.optimizer.zero_grad()
    return total


def make_both(size: str, dropout: float, device: torch.device) -> tuple[OwnBERT, Transformers]:
    """Both from the same random weights."""
    from ownbert.checkpoint import load

    with tempfile.TemporaryDirectory() as folder:
        model = their_model(size, dropout, Path(folder))
        return OwnBERT(load(Path(folder)), device), Transformers(model, device)
