"""Objectives that predict single tokens: masked words, next words, words in a random order (XLNet),
and replaced words (ELECTRA).

T tokens of a sequence, V vocabulary, M targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ownbert.config.encoder import XLNET_STRUCTURE, EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.objectives.objective import Loss, PretrainingObjective, unmasked, with_special_tokens

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ownbert.batches.batch import Batch
    from ownbert.batches.example import Example
    from ownbert.batches.masking import Masker
    from ownbert.corpus.pretraining_examples import PretrainingData
    from ownbert.nn.model import Model
    from ownbert.text.tokenizer import Tokenizer


# XLNet: a span of one to five tokens in a context of six times its length.
_LONGEST, _TOKENS_PER_TARGET = 5, 6
_HEAD_SIZE = 64  # size of the generator's attention heads, as in all published models


@dataclass(frozen=True)
class MaskedLM(PretrainingObjective):
    """Cross entropy of the masked tokens (Devlin et al. 2019, section 3.1, task 1)."""

    name = "mlm"
    title, short, colour = "masked words", "MLM", 0
    explained = "masked words"
    decodes = predicts = reads_features = True
    uses = frozenset({"masking", "mask_rate", "ngram"})
    auto_class = "AutoModelForMaskedLM"

    @classmethod
    def masker(cls, tokenizer: Tokenizer, ordinary: np.ndarray, task: Any) -> Masker:
        from ownbert.batches.masking import Masking, continuing_tokens

        return Masking(
            tokenizer.mask_id,
            ordinary,
            task.rate,
            kind=task.masking,
            continues=None if task.masking == "token" else continuing_tokens(tokenizer),
            longest=task.ngram if task.masking == "ngram" else None,
        )


@dataclass(frozen=True)
class CausalLM(PretrainingObjective):
    """Cross entropy of the next token under a model that sees only the tokens before it."""

    name, input_view = "clm", "causal"
    title, short, colour = "next words", "CLM", 2
    explained = "next words"
    decodes = predicts = True

    def count(self, batch: Batch) -> int:
        return batch.tokens - batch.sequences

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        """The batch for predicting each next token: the targets' rows (T - B) are all but the last
        of a sequence, masked tokens are restored, and each token attends to those before it."""
        import numpy as np
        import torch

        from ownbert.batches.layout import to_device

        ids, layout = unmasked(batch), batch.layout
        last = np.cumsum(layout.lengths) - 1
        rows = to_device(torch.from_numpy(np.delete(np.arange(batch.tokens), last)), ids.device)
        layout = replace(layout, causal=True)
        return replace(
            batch, token_ids=ids, layout=layout, masked_positions=rows, masked_ids=ids[rows + 1]
        )

    @classmethod
    def unigram(cls, unigram: Tensor, data: PretrainingData, ordinary: np.ndarray) -> Tensor:
        return with_special_tokens(unigram, data, lambda example: example.token_ids[1:], ordinary)


@dataclass(frozen=True)
class PermutedSpans:
    """Spans to predict, of one to five tokens, each in a context of six times its length.

    Special tokens are not predicted; all tokens that are not predicted are visible to all others.
    ``ordinary`` (V) is false for special tokens.

    Source: Yang et al. 2019, section 2.2 and appendix A.3; the spans as in Transformers'
    DataCollatorForPermutationLanguageModeling.
    """

    ordinary: np.ndarray
    by_words = False

    def example(
        self, whole: Example, rng: np.random.Generator, begins: np.ndarray | None
    ) -> Example:
        positions, order = self(whole.token_ids, rng)
        ids = whole.token_ids[positions]
        return replace(whole, masked_positions=positions, masked_ids=ids, words=None, order=order)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The positions of the targets (M, ascending) in a sequence of ids (T), and the rank of
        each in the prediction order (M); at least one target, if there is any ordinary token."""
        import numpy as np

        chosen = np.zeros(len(ids), dtype=bool)
        start = 0
        while start < len(ids):
            length = int(rng.integers(1, _LONGEST + 1))
            piece = length * _TOKENS_PER_TARGET
            first = start + int(rng.integers(piece - length + 1))
            chosen[first : first + length] = True
            start += piece
        candidates = self.ordinary[ids]
        positions = (chosen & candidates).nonzero()[0]
        if not len(positions) and candidates.any():
            positions = rng.choice(candidates.nonzero()[0], 1)
        return positions, rng.permutation(len(positions))


@dataclass(frozen=True)
class PermutationLM(PretrainingObjective):
    """Cross entropy of tokens that are predicted one after the other, in a random order: each by a
    query stream, from the tokens that are not predicted and those before it in the order (Yang et
    al. 2019, sections 2.2 and 2.3)."""

    name, input_view = "plm", "permuted"
    title, short, colour = "words in a random order", "PLM", 3
    explained = "words in a random order, on its own: XLNet"
    network, alone = "XLNet", True
    decodes = predicts = True

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        """The batch for predicting its masked tokens, which are not replaced, in its order:
        ``predicted`` are their rows (M), which a query stream predicts, and ``masked_positions``
        the stream's rows, which follow all tokens."""
        import torch

        if batch.masked_positions is None or batch.order is None:
            raise ValueError(
                "a batch for permutation language modelling names an order of its targets"
            )
        rows = batch.masked_positions
        ranks = torch.full_like(batch.token_ids, -1).index_copy(0, rows, batch.order)
        behind = torch.arange(batch.tokens, batch.tokens + len(rows), device=rows.device)
        layout = replace(batch.layout, ranks=ranks)
        return replace(batch, layout=layout, predicted=rows, masked_positions=behind)

    @classmethod
    def masker(cls, tokenizer: Tokenizer, ordinary: np.ndarray, task: Any) -> Masker:
        return PermutedSpans(ordinary)

    @classmethod
    def structure(cls, config: EncoderConfig, dropout: float) -> EncoderConfig:
        return replace(config, **XLNET_STRUCTURE, activation_dropout=dropout)

    @classmethod
    def make_network(cls, config: EncoderConfig, settings: Any) -> tuple[Model, None]:
        from ownbert.nn.model import Model

        head = HeadSpec("mlm", transform=False)
        return Model(config, [head], pooler=False, model_type="xlnet"), None


@dataclass(frozen=True)
class ReplacedToken(PretrainingObjective):
    """Whether each token was replaced by a generator (Clark et al. 2020, section 2)."""

    weight: float = 50.0
    name, head, input_view = "rtd", "discriminator", "corrupted"
    title, short, colour = "replaced words", "replaced words", 6
    explained = "replaced tokens, with mlm"
    network = "ELECTRA"
    samples = False
    auto_class = "AutoModel"

    def count(self, batch: Batch) -> int:
        return 0 if batch.masked_ids is None else batch.tokens

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        from torch.nn.functional import binary_cross_entropy_with_logits

        assert batch.replaced is not None
        logits = logits.float()  # (T)
        truth = batch.replaced
        total = binary_cross_entropy_with_logits(logits, truth.float(), reduction="sum")
        correct = ((logits.detach() > 0) == truth).sum()
        return Loss(total, correct, truth.numel(), (~truth).sum())

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        """The batch with tokens drawn from the generator's logits (M, V) where it was masked;
        ``replaced`` (T) is true where they differ from the original ones."""
        import torch

        assert batch.masked_positions is not None
        assert batch.masked_ids is not None
        with torch.no_grad():
            # The largest of logits with Gumbel noise is a draw from their softmax.
            noise = torch.empty_like(logits["mlm"], dtype=torch.float32).exponential_().log_()
            drawn = (logits["mlm"].float() - noise).argmax(-1)
            ids = batch.token_ids.index_copy(0, batch.masked_positions, drawn)
            return replace(batch, token_ids=ids, replaced=ids != unmasked(batch))

    @classmethod
    def require(cls, names: Set[str]) -> None:
        if names != {"mlm", "rtd"}:
            raise InputError("task.objectives has rtd, which requires mlm and nothing else")

    @classmethod
    def make_network(cls, config: EncoderConfig, settings: Any) -> tuple[Model, Model]:
        """A discriminator, and a narrower generator with its embeddings (Clark et al. 2020, section
        3.1)."""
        from ownbert.nn.model import Model

        model = Model(config, ["discriminator"], pooler=False, model_type="electra")
        width = max(
            _HEAD_SIZE, round(config.hidden_size * settings.generator / _HEAD_SIZE) * _HEAD_SIZE
        )
        narrow = replace(
            config,
            hidden_size=width,
            num_attention_heads=width // _HEAD_SIZE,
            intermediate_size=4 * width,
            embedding_size=config.hidden_size if width != config.hidden_size else None,
        )
        spec = HeadSpec("mlm", activation="gelu")
        generator = Model(narrow, [spec], pooler=False, model_type="electra")
        for name in ("word", "position", "token_type"):
            shared = getattr(model.encoder.embeddings, name)
            setattr(generator.encoder.embeddings, name, shared)
        generator.tie()
        return model, generator
