"""Model = encoder (+ decoder) + named heads.

T tokens, B sequences, S longest sequence (S' of the keys), D hidden, L layers, H heads, E embedding
size, V vocabulary.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch, read_again
from ownbert.batches.sampled_softmax import Candidates
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.config.variants import SecondReading
from ownbert.exceptions import InputError, in_short, other_names
from ownbert.nn.context import Cache, Context
from ownbert.nn.encoder_stack import Embeddings, Encoder
from ownbert.nn.output_heads import (
    ClassificationHead,
    MaskedLMHead,
    NextTokenHead,
    Pooler,
    make_head,
)
from ownbert.nn.positions import RelativeSinusoids
from ownbert.nn.undrawn import truncated_normal_


@dataclass
class Outputs:
    """The outputs of a forward pass.

    Args:
        hidden: (T, D).
        pooled: (B, D), if there is a pooler.
        logits: logits by name of the head.
        hidden_states: if requested, before and after each layer, L + 1 tensors (T, D).
        attentions, cross_attentions: if requested, by layer, (H, S, S') for each sequence.
    """

    hidden: Tensor
    pooled: Tensor | None
    logits: dict[str, Tensor] = field(default_factory=dict)
    hidden_states: tuple[Tensor, ...] = ()
    attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    cross_attentions: dict[int, list[Tensor]] = field(default_factory=dict)
    cache: Cache | None = None


class Model(nn.Module):
    """An encoder with an optional pooler, and heads by their kind.

    Args:
        config: configuration of the encoder.
        heads: kinds as in BERT ("mlm", "nsp", "classification", ...), or specs of others.
        pooler: whether there is a pooler; by default if a head needs it or there are no heads.
        labels: labels of sequence or token classification.
        model_type: Hugging Face's name of the family, which determines the saved format.
        decoder: configuration of the decoder of an encoder-decoder model; it reads the batch,
            attends to the encoded ``batch.source``, and has the heads on top.
        second_reading: for a decoder that reads the encoder's input again if a batch has no source.
        share_embeddings: whether encoder, decoder and, if it is ``tied``, the next-token head share
            one word table (Vaswani et al. 2017, section 3.4).

    Attributes:
        head_dtype: dtype of the inputs of pooler and heads; None: the encoder's.
        padded_call: the call with padded tensors, as that of a class of Transformers; set by
            ``ownbert.load`` and ``ownbert.BertModel`` etc.

    Raises:
        InputError: unknown head, or a head needs a pooler although ``pooler`` is false.
    """

    head_dtype: torch.dtype | None = None
    padded_call: Any = None

    def __init__(
        self,
        config: EncoderConfig,
        heads: Sequence[str | HeadSpec] = (),
        *,
        pooler: bool | None = None,
        labels: Sequence[str] = (),
        model_type: str = "bert",
        decoder: EncoderConfig | None = None,
        second_reading: SecondReading | None = None,
        share_embeddings: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.model_type = model_type
        specs = [HeadSpec(head) if isinstance(head, str) else head for head in heads]
        self.specs = {spec.kind: spec for spec in specs}
        self.labels = tuple(labels) if any(spec.labelled for spec in specs) else ()
        self.encoder = Encoder(config)
        self.decoder = None if decoder is None else Encoder(decoder)
        self.second_reading = second_reading
        self.share_embeddings = share_embeddings
        head_config = decoder or config
        self.heads = nn.ModuleDict({s.kind: make_head(s, head_config, self.labels) for s in specs})
        needed = any(spec.needs_pooler for spec in specs)
        if needed and pooler is False:
            kinds = ", ".join(self.specs)
            raise InputError("heads {kinds} need a pooler; do not disable it", kinds)
        has_pooler = pooler if pooler is not None else needed or not specs
        self.pooler = Pooler(config) if has_pooler else None
        self.initialize()
        self.tie()

    def tie(self) -> None:
        """Share the word embeddings with the MLM decoder and other modules that use them."""
        for kind, head in self.heads.items():
            if isinstance(head, MaskedLMHead):
                head.decoder.weight = self.encoder.embeddings.word.weight
            shared = self.share_embeddings and self.specs[kind].tied
            if isinstance(head, NextTokenHead) and shared:
                head.projection.weight = self.encoder.embeddings.word.weight
        if self.decoder is not None and self.share_embeddings:
            self.decoder.embeddings.word.weight = self.encoder.embeddings.word.weight

    def initialize(self, names: Collection[str] | None = None) -> None:
        """Initialise weights with ``truncated_normal_`` and biases with zero, as in BERT; only the
        parameters in ``names`` (by default all), which alone consume random numbers."""
        std = self.config.initializer_range
        new = {id(p) for name, p in self.named_parameters() if names is None or name in names}
        for module in self.modules():
            if new.isdisjoint(map(id, module.parameters(recurse=False))):
                continue
            if isinstance(module, nn.Linear | nn.Embedding):
                if id(module.weight) in new:
                    truncated_normal_(module.weight, std)
                if isinstance(module, nn.Linear) and id(module.bias) in new:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.EmbeddingBag):
                nn.init.zeros_(module.weight)
            elif names is not None:
                # Convolutions, recurrent layers, CRF: in a new model the constructor initialises
                # them.
                getattr(module, "reset_parameters", lambda: None)()
        gate = self.encoder.gate
        if gate is not None and id(gate.up.weight) in new:
            gate.initialize()
        for vector in self._vectors():
            if id(vector) in new:
                truncated_normal_(vector, std)
        for head in self.heads.values():
            if isinstance(head, ClassificationHead) and id(head.dense.weight) in new:
                head.initialize_ngrams()

    def _vectors(self) -> Iterator[nn.Parameter]:
        """Vectors of XLNet, which belong to no PyTorch layer."""
        for module in self.modules():
            if isinstance(module, RelativeSinusoids):
                yield from module.parameters(recurse=False)
            elif isinstance(module, Embeddings) and module.mask is not None:
                yield module.mask

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.encoder.parameters()).dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a packed ``Batch`` (see ``run``), or on padded tensors (``input_ids``,
        ``attention_mask``, ``labels``, ...) with the arguments and outputs of Transformers."""
        batch = args[0] if args else kwargs.get("batch")
        if isinstance(batch, Batch):
            return self.run(*args, **kwargs)
        if self.padded_call is None:
            if batch is not None and not isinstance(batch, Tensor):  # the batch of an export
                return self.run(*args, **kwargs)
            raise InputError(
                "this model reads a packed Batch; for padded tensors, load it with ownbert.load "
                "(Marian and T5: with Transformers)"
            )
        return self.padded_call(self, args, kwargs)

    def run(
        self,
        batch: Batch,
        heads: Sequence[str] | None = None,
        *,
        context: Context | None = None,
        keep_hidden: bool = False,
    ) -> Outputs:
        """Run the model on a packed batch.

        Args:
            heads: names of the heads to run; by default all.
            context: head masks, encoder states, a cache, layers whose attention weights to keep; by
                default the plain context of the batch.
            keep_hidden: whether to return the hidden states between layers.
        """
        stack_batch = batch
        if self.decoder is None:
            stack = self.encoder
            context = stack.plain_context(batch) if context is None else context
        else:
            stack = self.decoder
            if context is None:
                if batch.source is None and self.second_reading is not None:
                    stack_batch = read_again(batch, self.second_reading.start_id)
                context = self.decoder_context(stack_batch)
        hidden, states = stack(stack_batch, context, keep_hidden=keep_hidden)
        if self.head_dtype is not None:
            hidden = hidden.to(self.head_dtype)
        pooled = None if self.pooler is None else self.pooler(hidden, batch)
        names = self.heads.keys() if heads is None else heads
        logits = {name: self.heads[name](hidden, pooled, batch) for name in names}
        return Outputs(
            hidden,
            pooled,
            logits,
            states,
            context.attentions,
            context.cross_attentions,
            context.cache,
        )

    def words_of(self, pooled: Tensor, candidates: Candidates | None = None) -> Tensor:
        """Logits of words for whole sequences by the MLM head: (B, D) -> (B, V), or (B, C)."""
        head = self.heads["mlm"]
        assert isinstance(head, MaskedLMHead)
        return head.words(pooled, candidates)

    def decoder_context(self, batch: Batch) -> Context:
        """The decoder's context: causal self-attention, and attention to the encoded source."""
        source = batch.source
        if source is None:
            raise ValueError(
                "an encoder-decoder model needs batch.source, the input of the encoder"
            )
        encoder_hidden, _ = self.encoder(source)
        assert self.decoder is not None
        context = self.decoder.plain_context(batch)
        context.encoder_hidden, context.cross = encoder_hidden, batch.cross
        return context

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers can load.

        Raises:
            InputError: the folder cannot be written, or the model was not loaded with
                ``ownbert.load``.
        """
        if not isinstance(folder, str | os.PathLike):
            raise InputError("save_pretrained needs a folder, not {folder}", in_short(folder))
        if self.padded_call is None:
            raise InputError("write this model with ownbert.save(model, folder)")
        self.padded_call.save(self, folder)

    def gradient_checkpointing_enable(self, enabled: bool = True) -> None:
        """Recompute activations inside blocks in the backward pass: less memory, more time."""
        for stack in filter(None, (self.encoder, self.decoder)):
            stack.gradient_checkpointing = enabled

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            instead = None if name.startswith("_") else other_names("Model").get(name)
            if instead is None:
                raise
            raise AttributeError(f"a model of OwnBERT has no {name!r}: {instead}") from None

    def parts(self, heads: Iterable[str]) -> list[nn.Module]:
        """The modules that the logits of these heads depend on."""
        modules: list[nn.Module] = [self.encoder, *(self.heads[name] for name in heads)]
        if self.decoder is not None:
            modules.append(self.decoder)
        if self.pooler is not None and any(self.specs[name].needs_pooler for name in heads):
            modules.append(self.pooler)
        return modules

    def prune_heads(self, heads: dict[int, Sequence[int]]) -> None:
        """Remove attention heads permanently.

        Args:
            heads: indices of heads by layer, in addition to those pruned earlier.

        Raises:
            InputError: a head does not exist, or a layer would lose all heads.
        """
        pruned = {layer: set(numbers) for layer, numbers in self.config.pruned_heads.items()}
        for layer, numbers in replace(self.config, pruned_heads=heads).pruned_heads.items():
            pruned[layer] = pruned.get(layer, set()) | set(numbers)
        config = replace(self.config, pruned_heads={i: tuple(n) for i, n in pruned.items()})
        for i, block in enumerate(self.encoder.blocks):
            if config.kept_heads(i) != self.config.kept_heads(i):
                block.attention.prune(config, i)  # pyright: ignore
        self.config = self.encoder.config = config

    def keep_layers(self, count: int) -> None:
        """Remove the layers above the first ``count`` permanently.

        Raises:
            InputError: the model has no more layers than that, or its layers share weights.
        """
        self._refuse_decoder()
        config = self.config
        if config.num_hidden_groups is not None:
            raise InputError("the layers share their weights (ALBERT): none can be dropped")
        if config.layer_gate is not None:
            raise InputError("the model weights all layers (layer_gate): none can be dropped")
        if type(count) is not int or not 1 <= count < config.num_hidden_layers:
            message = "{count} layers cannot be kept: the model has {num_hidden_layers}"
            raise InputError(message, in_short(count), config.num_hidden_layers)
        kept = {layer: heads for layer, heads in config.pruned_heads.items() if layer < count}
        self.encoder.blocks = self.encoder.blocks[:count]
        self.config = replace(config, num_hidden_layers=count, pruned_heads=kept)
        self.encoder.config = self.config

    def set_words(self, words: nn.Embedding) -> None:
        """Replace the word embeddings, and with them a tied output matrix.

        Args:
            words: (V, E).

        Raises:
            InputError: E differs, or the model has a decoder.
        """
        self._refuse_decoder()
        if not isinstance(words, nn.Embedding):
            raise InputError(
                "set_words needs a torch.nn.Embedding, not a {kind}", type(words).__name__
            )
        old, size = self.encoder.embeddings.word, words.num_embeddings
        if words.embedding_dim != old.embedding_dim:
            message = "the new word table is {embedding_dim} wide; it must be {old_embedding_dim}"
            raise InputError(message, words.embedding_dim, old.embedding_dim)
        if size != self.config.vocab_size:
            self.resize(size)
        self.encoder.embeddings.word = words
        self.tie()

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Change the vocabulary size; new tokens start as the mean of the old ones.

        Raises:
            InputError: encoder and decoder have separate vocabularies.
        """
        if self.decoder is not None and not self.share_embeddings:
            raise InputError("the sizes of two separate vocabularies cannot be changed")
        config = replace(self.config, vocab_size=vocab_size)
        embeddings = self.encoder.embeddings
        old = embeddings.word
        word = nn.Embedding(vocab_size, old.embedding_dim, padding_idx=old.padding_idx)
        embeddings.word = word.to(old.weight).requires_grad_(old.weight.requires_grad)
        embeddings.word.weight.copy_(_resized(old.weight, vocab_size))
        if self.decoder is not None:
            self.decoder.config = replace(self.decoder.config, vocab_size=vocab_size)
            self.decoder.embeddings.word.num_embeddings = vocab_size
        for head in self.heads.values():
            if isinstance(head, NextTokenHead):
                _resize_output(head.projection, vocab_size)
            if isinstance(head, MaskedLMHead):
                _resize_output(head.decoder, vocab_size)
                if head.decoder_rest is not None:
                    rest = _resized(head.decoder_rest.weight.T, vocab_size).T.contiguous()
                    head.decoder_rest.in_features = vocab_size
                    trains = head.decoder_rest.weight.requires_grad
                    head.decoder_rest.weight = nn.Parameter(rest, trains)
        self.config = self.encoder.config = config
        self.tie()

    def _refuse_decoder(self) -> None:
        if self.decoder is not None:
            raise InputError("this is not supported for a model with a decoder")

    def extra_repr(self) -> str:
        config, count = self.config, sum(p.numel() for p in self.parameters())
        lines = [
            f"{self.model_type}: heads={config.num_attention_heads} x {config.head_size}, "
            f"positions={config.position_embedding_type}, parameters={count:,}"
        ]
        if config.pruned_heads:
            lines.append(f"pruned_heads={dict(config.pruned_heads)}")
        for name, head in self.heads.items():
            if not isinstance(head, MaskedLMHead):
                continue
            if head.decoder.weight is self.encoder.embeddings.word.weight:
                lines.append(f"tied: heads.{name}.decoder.weight = encoder.embeddings.word.weight")
        return "\n".join(lines)


def _resize_output(layer: nn.Linear, vocab_size: int) -> None:
    """Resize the output layer; a tied matrix is set later, and new words have zero bias."""
    layer.out_features = vocab_size
    layer.weight = nn.Parameter(_resized(layer.weight, vocab_size), layer.weight.requires_grad)
    if layer.bias is not None:
        kept = layer.bias[:vocab_size]
        bias = torch.cat((kept, kept.new_zeros(vocab_size - len(kept))))
        layer.bias = nn.Parameter(bias, layer.bias.requires_grad)


def _resized(rows: Tensor, count: int) -> Tensor:
    """(V, E) -> (count, E), truncated or padded with the mean row."""
    missing = max(0, count - len(rows))
    return torch.cat((rows[:count], rows.mean(0).expand(missing, -1)))
