"""Encoder-decoder models, Marian and T5, with Transformers' API.

B sequences, S longest target, S' longest source, V vocabulary, D hidden.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ownbert.batches.batch import from_padded
from ownbert.checkpoint.copying import copy_weights, require_blocks, require_fit
from ownbert.checkpoint.transformer_folder import map_of, new_translation, save_translation
from ownbert.exceptions import InputError, warn_of_input
from ownbert.families.mapping.encoder_decoder import EncoderDecoder
from ownbert.families.mapping.weight_map import WeightMap
from ownbert.hf.common import LoadArguments, refuse
from ownbert.hf.forward_pass import losses
from ownbert.hf.forward_pass.forward import (
    attention_layers,
    cache_of,
    loss_of,
    named_values,
    option,
    returns_names,
)
from ownbert.hf.forward_pass.inputs import (
    PackedInputs,
    PaddedInputs,
    check_inputs,
    check_tensors,
    pack,
)
from ownbert.hf.forward_pass.outputs import ModelOutput, two_stack_field_names
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.hf.seq2seq.generation import Generating, banned_tokens, default_mask
from ownbert.nn.generate import beam_search, greedy
from ownbert.nn.model import Model, Outputs
from ownbert.text.tokenizer import Tokenizer

_ENCODER = ("last_hidden_state", "hidden_states", "attentions")
_DECODER = (
    *("last_hidden_state", "past_key_values", "hidden_states", "attentions"),
    "cross_attentions",
)
# Arguments of ``generate`` that select other strategies, with their required values.
_FIXED = {"do_sample": False, "num_return_sequences": 1, "penalty_alpha": None}
_OPTIONS = ("max_new_tokens", "max_length", "num_beams", "length_penalty", "early_stopping")
_OPTIONS += ("bad_words_ids",)
_UNUSED = ("labels", "synced_gpus")  # passed to ``generate`` by ``Seq2SeqTrainer``


class EncoderDecoderModel(Generating, PreTrainedModel):
    """An encoder-decoder model.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    family: ClassVar[EncoderDecoder]  # pyright: ignore[reportIncompatibleVariableOverride]

    def _new_model(self) -> Model:
        values = self.config.to_dict()
        encoder, decoder, shared = self.family.read_config(values)
        return new_translation(
            self.family,
            encoder,
            decoder,
            shared=shared,
            heads=self.family.specs(self.architecture, values, shared=shared),
            labels=tuple(self.config.id2label.values()),
        )

    @property
    def weight_map(self) -> WeightMap:
        return map_of(self.model)

    def _default_decoder_ids(self, given: dict[str, Any]) -> Tensor:
        """The default decoder input: the labels, or the encoder's input again."""
        again = self.architecture in self.family.answering
        ids = given.get("input_ids" if again else "labels")
        if ids is None and again:
            raise InputError("give input_ids, or decoder_input_ids with encoder_outputs")
        if ids is None:
            raise InputError("give decoder_input_ids" + " or labels" * bool(self.kinds))
        return self.prepare_decoder_input_ids_from_labels(ids)

    def _values(
        self, given: dict[str, Any], out: Outputs, packed: PackedInputs, **options: Any
    ) -> dict[str, Any]:
        """The decoder's outputs by name; see ``named_values``."""
        return named_values(self, stack=self._decoder, out=out, packed=packed, **options)

    @property
    def base_model(self) -> PreTrainedModel:
        raise InputError(f"{type(self).__name__} has no separate base model; see .model")

    @property
    def _decoder(self) -> Any:
        return self.model.decoder

    def get_encoder(self) -> Any:
        """A function of input_ids and attention_mask that returns ``encoder_outputs``."""
        return self.encode

    def get_decoder(self) -> Any:
        """A function of input_ids, encoder_hidden_states, ... that returns hidden states."""
        return self.decode

    def get_output_embeddings(self) -> nn.Module:
        if "generator" not in self.model.heads:
            raise InputError(f"{type(self).__name__} has no language modelling head")
        return self.model.heads["generator"].projection  # pyright: ignore[reportReturnType]

    def prune_heads(self, heads_to_prune: dict[int, Sequence[int]]) -> None:
        raise InputError(
            f"{self.config.model_type} cannot be pruned: its format has no key for the heads"
        )

    @property
    def start_token_id(self) -> int:
        """The start token of generated texts: padding if the config names none."""
        start = self.config.decoder_start_token_id
        return self.config.pad_token_id if start is None else start

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels (B, S) shifted to the right by one, after the start token."""
        ids = labels.roll(1, 1)
        ids[:, 0] = self.start_token_id
        return ids.masked_fill(ids == losses.NO_LABEL, self.config.pad_token_id)

    # ---- forward

    def _forward(self, given: dict[str, Any]) -> Any:
        check_tensors(given)
        given = {**given, **self._decoder_masks(given)}
        encoded = given.get("encoder_outputs")
        if encoded is None:
            source = ("input_ids", "attention_mask", "head_mask", "inputs_embeds")
            options = ("output_attentions", "output_hidden_states")
            encoded = self.encode(**{name: given.get(name) for name in (*source, *options)})
        encoder_values = tuple(encoded.to_tuple() if hasattr(encoded, "to_tuple") else encoded)
        values = self._decode(given, encoder_values[0])
        for name in ("hidden_states", "attentions"):
            values[f"decoder_{name}"] = values.pop(name, None)
        pairs = (
            encoded.items()
            if isinstance(encoded, Mapping)
            else zip(_ENCODER, encoder_values, strict=False)
        )
        values |= {f"encoder_{name}": value for name, value in pairs}
        values["loss"] = loss_of(self, values, given)
        named = ModelOutput(two_stack_field_names(self.kinds), values)
        return named if returns_names(self, given) else named.to_tuple()

    def _decoder_masks(self, given: dict[str, Any]) -> dict[str, Tensor]:
        """The head masks of the decoder, including a separate one of cross-attention."""
        self_mask, cross = given.get("decoder_head_mask"), given.get("cross_attn_head_mask")
        if self_mask is None or cross is not None:
            return {}
        config = self._decoder.config
        return {
            "cross_attn_head_mask": self_mask.new_ones(
                config.num_hidden_layers, config.num_attention_heads
            )
        }

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: Any = None,
        output_hidden_states: bool | None = None,
    ) -> ModelOutput:
        """The encoder's outputs for a source.

        Args:
            input_ids: (B, S').
            attention_mask: (B, S'), 1 for tokens and 0 for padding; by default all ones.
            head_mask: see ``forward``.
            inputs_embeds: (B, S', D), instead of ids.
            output_attentions: True, or layer indices.
            output_hidden_states: whether to return the hidden states of all layers.

        Returns:
            last_hidden_state (B, S', D), and hidden_states and attentions if requested.
        """
        stack = self.model.encoder
        options = {"output_attentions": output_attentions}
        options["output_hidden_states"] = output_hidden_states
        if inputs_embeds is not None:  # undo the model's scaling, which Transformers skips here
            inputs_embeds = inputs_embeds / stack.embeddings.scale
        given: dict[str, Any] = {"input_ids": input_ids, "inputs_embeds": inputs_embeds}
        padded = PaddedInputs(
            **given,
            attention_mask=attention_mask,
            head_mask=head_mask,
            keep=attention_layers(stack, option(self, options, "output_attentions")),
        )
        check_inputs(stack, given, padded.size)
        packed = pack(padded, stack.config, dense=not self.packed)
        packed = packed.with_hooked(stack.embeddings.word, input_ids)
        keep_hidden = bool(option(self, options, "output_hidden_states"))
        if torch.is_grad_enabled() and (keep_hidden or padded.keep):
            packed.context.returned = packed
        hidden, states = stack(packed.batch, packed.context, keep_hidden=keep_hidden)
        out = Outputs(hidden, None, hidden_states=states)
        return ModelOutput(_ENCODER, named_values(self, (), stack, out, packed, states=keep_hidden))

    def decode(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **given: Any
    ) -> ModelOutput:
        """The decoder's outputs for ``encoder_hidden_states``, without a head.

        Args:
            input_ids: (B, S).
            attention_mask: (B, S), by default all ones.
            given: further arguments of a decoder.
        """
        encoded = given.pop("encoder_hidden_states", None)
        if encoded is None:
            raise InputError("give encoder_hidden_states, as returned by get_encoder()")
        mask = given.pop("encoder_attention_mask", None)
        for name in ("head_mask", "inputs_embeds"):
            given[f"decoder_{name}"] = given.pop(name, None)
        named = {"decoder_input_ids": input_ids, "decoder_attention_mask": attention_mask}
        check_tensors({**given, **named})
        values = self._decode({**given, **named, "attention_mask": mask}, encoded, heads=False)
        return ModelOutput(_DECODER, values)

    def _decode(
        self, given: dict[str, Any], encoded: Tensor, *, heads: bool = True
    ) -> dict[str, Any]:
        """The decoder's logits (B, S, V) or hidden states, and other requested outputs."""
        kinds = self.kinds if heads else ()
        stack = self._decoder
        ids, embeds = given.get("decoder_input_ids"), given.get("decoder_inputs_embeds")
        if ids is None and embeds is None:
            ids = self._default_decoder_ids(given)
        mask = given.get("decoder_attention_mask")
        padded = PaddedInputs(
            input_ids=ids,
            inputs_embeds=embeds,
            attention_mask=mask,
            encoder_hidden_states=encoded,
            encoder_attention_mask=given.get("attention_mask"),
            head_mask=given.get("decoder_head_mask"),
            cross_head_mask=given.get("cross_attn_head_mask"),
            cache=cache_of(self, stack.config, given),
            keep=attention_layers(stack, option(self, given, "output_attentions")),
        )
        inputs = {"decoder_input_ids": ids, "decoder_inputs_embeds": embeds}
        inputs["encoder_hidden_states"] = encoded
        inputs["encoder_attention_mask"] = padded.encoder_attention_mask
        check_inputs(stack, inputs, padded.size, "decoder_")
        # Labels may be at padding, and so may the final token of a text or an answer's end.
        labelled = given.get("labels") is not None or kinds not in ((), ("generator",))
        dense = not self.packed or (labelled and mask is not None)
        packed = pack(padded, stack.config, dense=dense)
        source = self.model.encoder if self.model.share_embeddings else stack
        packed = packed.with_hooked(source.embeddings.word, ids)
        keep_hidden = bool(option(self, given, "output_hidden_states"))
        if torch.is_grad_enabled() and (keep_hidden or padded.keep or not kinds):
            packed.context.returned = packed
        out = self.model(packed.batch, kinds, context=packed.context, keep_hidden=keep_hidden)
        return self._values(given, out, packed, kinds=kinds, states=keep_hidden)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Any = None,
        attention_mask: Tensor | None = None,
        *,
        generation_config: Any = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        bad_words_ids: Sequence[Sequence[int]] | None = None,
        use_cache: bool = True,
        **others: Any,
    ) -> Tensor:
        """Generate translations, greedily or by beam search (``num_beams``).

        Finished translations are ranked as in Transformers, by their log-probability divided by
        their length to the power of ``length_penalty``.

        Args:
            input_ids: (B, S'); also as ``inputs``.
            attention_mask: (B, S'), 1 for tokens; by default all but padding.
            generation_config: Transformers' config, for options that are not given.
            max_new_tokens: maximum tokens after the start token.
            max_length: the same including the start token; 21 by default.
            num_beams, length_penalty, bad_words_ids: by default the config's.
            early_stopping: whether a beam search ends as soon as ``num_beams`` translations have
                ended, or if "never" only when no longer one can be better; by default the config's.
            use_cache: whether to cache keys and values of earlier tokens.

        Returns:
            (B, S) ids: the start token, the translation, the end token and padding.

        Raises:
            InputError: an option is not supported, or a text has no tokens.
        """
        input_ids = others.pop("inputs", None) if input_ids is None else input_ids
        options = max_new_tokens, max_length, num_beams, length_penalty, early_stopping
        named = dict(zip(_OPTIONS, (*options, bad_words_ids), strict=True))
        self.check_call(input_ids, attention_mask, others | named)
        config = self.config
        if self.kinds != ("generator",):
            kind = self.family.generating
            raise InputError(f"{type(self).__name__} does not generate text; load a {kind}")
        names = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
        known = self.generation_options(generation_config, (*_FIXED, *names, *_OPTIONS))
        self.require_fixed(
            _FIXED, known, others, generation_config, "does not sample", (*names, *_OPTIONS)
        )
        others = {k: v for k, v in known.items() if k in names} | others
        others = {k: v for k, v in others.items() if k not in _UNUSED}
        end, pad, start, forced = (others.pop(n, getattr(config, n, None)) for n in names)
        start = self.start_token_id if start is None else start
        refuse(f"{type(self).__name__}.generate", others, (*_FIXED, *names, "num_beams"))

        def setting(value: Any, name: str, default: Any) -> Any:
            value = known.get(name) if value is None else value
            return getattr(config, name, None) or default if value is None else value

        longest = self.most_new_tokens(known, max_new_tokens, max_length, 1)
        if longest < 1:
            raise InputError(
                f"max_length is {longest + 1}; it must be 2 or more, because the start token counts"
            )
        ends = [end] if isinstance(end, int) else end
        if not ends:
            raise InputError(f"eos_token_id is {end!r}; a token is needed")
        words = setting(bad_words_ids, "bad_words_ids", ())
        if attention_mask is None:
            attention_mask = default_mask(input_ids, pad, ends)
        if not bool((attention_mask == 1).any(1).all()):
            raise InputError("a text has no token: its attention_mask is all zeros")
        source, _ = from_padded(input_ids, attention_mask == 1)
        beams = setting(num_beams, "num_beams", 1)
        stack = self.model.decoder or self.model.encoder
        settings: dict[str, Any] = {
            "start": start,
            "end": ends,
            "longest": [longest] * len(input_ids),
            "banned": banned_tokens(words, ends, stack.config.vocab_size),
            "forced": forced,
            "cached": use_cache,
        }
        if beams > 1:
            penalty = setting(length_penalty, "length_penalty", 1.0)
            early = setting(early_stopping, "early_stopping", False)
            settings |= {"length_penalty": penalty, "by_length": True, "early": early}
            hypotheses = beam_search(self.model, source, beams=beams, **settings)
        else:
            if length_penalty is not None or early_stopping:
                warn_of_input("length_penalty and early_stopping have no effect with num_beams=1")
            hypotheses = greedy(self.model, source, **settings)
        rows = [[start, *h.ids, *([] if h.end is None else [h.end])] for h in hypotheses]
        width = max(map(len, rows))
        rows = [row + [pad] * (width - len(row)) for row in rows]
        return torch.tensor(rows, device=input_ids.device)

    def _prepare_generation_config(
        self, generation_config: Any, use_model_defaults: Any = None, **options: Any
    ) -> tuple[Any, dict[str, Any]]:
        """A pipeline's config with the model's values where it has none, and with ``options``.

        Pipelines of causal models use the model's config alone: theirs samples by default.
        """
        merged = copy.deepcopy(generation_config)
        default = vars(type(merged)())
        for name, value in vars(self.generation_config).items():
            if getattr(merged, name, None) == default.get(name):
                setattr(merged, name, value)
        return merged, merged.update(**options)

    # ---- folders

    @classmethod
    def _describe(cls, given: LoadArguments) -> Mapping[str, Any]:
        return given.values or {}

    @classmethod
    def _require_blocks(cls, description: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
        encoder, decoder, shared = cls.family.read_config(description)
        heads = cls.family.architectures[cls.architecture].heads
        head = heads[0].kind if heads else None
        weight_map = cls.family.weight_map(encoder, decoder, shared=shared, head=head)
        require_blocks(tensors, weight_map, path, encoder, decoder)

    def _fill(
        self,
        description: Mapping[str, Any],
        read: dict[str, Tensor],
        path: Path,
        *,
        mismatched: bool = False,
    ) -> dict[str, list[Any]]:
        if mismatched:
            kind = self.family.model_type
            raise InputError(f"ignore_mismatched_sizes is not supported for {kind}")
        require_fit(copy_weights(self.model, read, self.weight_map), path)
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        return {kind: [] for kind in kinds}

    def _write(self, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> None:
        values = {**self.config.to_dict(), "dtype": str(self.dtype).removeprefix("torch.")}
        save_translation(self.model, folder, values=values, tokenizer=tokenizer)
