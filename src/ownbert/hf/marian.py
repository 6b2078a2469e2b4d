"""MarianMTModel and MarianConfig: an encoder and a decoder that writes what the encoder has read.

B sequences, S places of a source, T places of what is written, V vocabulary, D hidden.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ownbert.checkpoint.copying import copy_weights, first_of
from ownbert.checkpoint.translation import new_translation, save_translation
from ownbert.checkpoint.weights import CONFIG, read_weights
from ownbert.config import EncoderConfig, HeadSpec
from ownbert.data.batch import from_padded
from ownbert.errors import InputError
from ownbert.families import marian
from ownbert.families.family import Head
from ownbert.families.weight_map import WeightMap
from ownbert.hf import losses
from ownbert.hf.arguments import refuse, signature
from ownbert.hf.checks import check_inputs, check_tensors
from ownbert.hf.config import PretrainedConfig
from ownbert.hf.forward import attention_weights, cache_of, kept_layers, returns_names, wanted
from ownbert.hf.generation import guessed_mask
from ownbert.hf.inputs import Padded, pack
from ownbert.hf.outputs import ModelOutput
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.nn.generate import beam_search, greedy
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

_ENCODER = ("last_hidden_state", "hidden_states", "attentions")
_FIELDS = (
    "loss",
    "logits",
    "past_key_values",
    "decoder_hidden_states",
    "decoder_attentions",
    "cross_attentions",
    "encoder_last_hidden_state",
    "encoder_hidden_states",
    "encoder_attentions",
)
# What a call of Transformers' may have and ours cannot do.
_REFUSED = ("decoder_head_mask", "cross_attn_head_mask")
# Of generate's many arguments those that ask for something other than the likeliest sequences.
_OTHERWISE = {"do_sample": False, "num_return_sequences": 1, "penalty_alpha": None}


class MarianConfig(PretrainedConfig):
    """Configuration of marian; keys and defaults as in Transformers."""

    model_type = marian.MODEL_TYPE
    defaults = marian.DEFAULTS
    aliases: ClassVar[Mapping[str, str]] = {
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
    }

    def __init__(self, *positional: Any, **values: Any) -> None:
        super().__init__(*positional, **values)
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        vars(self).setdefault("num_hidden_layers", self.encoder_layers)

    def structure(self) -> EncoderConfig:
        """What the encoder is made of. ``InputError`` for values that cannot go together."""
        return self.stacks()[0]

    def stacks(self) -> tuple[EncoderConfig, EncoderConfig, bool]:
        """Encoder, decoder, and whether they share one table of words."""
        return marian.read_config(self.to_dict())


class MarianMTModel(PreTrainedModel):
    """Marian with a language model head: reads a source, writes a translation.

    Arguments and outputs are those of Transformers 4.57.6. ``final_logits_bias`` is a parameter
    here and a buffer there; tables of positions are computed and not in the state dict.
    """

    architecture = marian.ARCHITECTURE
    config_class = MarianConfig
    arguments = signature(
        (
            "input_ids",
            "attention_mask",
            "decoder_input_ids",
            "decoder_attention_mask",
            "head_mask",
            "decoder_head_mask",
            "cross_attn_head_mask",
            "encoder_outputs",
            "past_key_values",
            "inputs_embeds",
            "decoder_inputs_embeds",
            "labels",
            "use_cache",
            "output_attentions",
            "output_hidden_states",
            "return_dict",
        )
    )

    def _new_model(self) -> Model:
        encoder, decoder, shared = self.config.stacks()
        return new_translation(encoder, decoder, shared=shared)

    @property
    def head(self) -> Head:
        return Head((HeadSpec("generator"),), pooler=False, decoder=True)

    @property
    def weight_map(self) -> WeightMap:
        encoder, decoder = self.model.encoder.config, self._decoder.config
        return marian.weight_map(encoder, decoder, shared=self.model.share_embeddings)

    @property
    def base_model(self) -> PreTrainedModel:
        raise InputError(f"{type(self).__name__} has no base model of its own; see .model")

    @property
    def _decoder(self) -> Any:
        return self.model.decoder

    def get_encoder(self) -> Any:
        """What makes ``encoder_outputs``, to be called with input_ids and attention_mask."""
        return self.encode

    def get_output_embeddings(self) -> nn.Module:
        return self.model.heads["generator"].projection  # pyright: ignore[reportReturnType]

    def prune_heads(self, heads_to_prune: dict[int, Sequence[int]]) -> None:
        raise InputError("marian cannot lose heads: its format has no key for them")

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels (B, T) moved by one place: each is written after those before it."""
        ids = labels.roll(1, 1)
        ids[:, 0] = self.config.decoder_start_token_id
        return ids.masked_fill(ids == losses.NO_LABEL, self.config.pad_token_id)

    # ---- forward

    def _run(self, given: dict[str, Any]) -> Any:
        check_tensors(given)
        for name in _REFUSED:
            if given.get(name) is not None:
                raise InputError(f"{name} cannot be done here; head_mask is of the encoder alone")
        encoded = given.get("encoder_outputs")
        if encoded is None:
            source = ("input_ids", "attention_mask", "head_mask", "inputs_embeds")
            options = ("output_attentions", "output_hidden_states")
            encoded = self.encode(**{name: given.get(name) for name in (*source, *options)})
        read = tuple(encoded.to_tuple() if hasattr(encoded, "to_tuple") else encoded)
        values = self._decode(given, read[0])
        if isinstance(encoded, Mapping):
            values |= {f"encoder_{name}": value for name, value in encoded.items()}
        else:
            values |= zip(_FIELDS[6:], read, strict=False)
        labels = given.get("labels")
        if labels is not None:
            values["loss"] = losses.one_of(values["logits"], labels)
        named = ModelOutput(_FIELDS, values)
        return named if returns_names(self, given) else named.to_tuple()

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: Any = None,
        output_hidden_states: bool | None = None,
    ) -> ModelOutput:
        """What the encoder makes of a source: last_hidden_state (B, S, D), and what is asked for.

        Takes a mask (B, S) that is 1 at tokens, and embeddings (B, S, D) in place of ids.
        """
        stack = self.model.encoder
        options = {"output_attentions": output_attentions}
        options["output_hidden_states"] = output_hidden_states
        if inputs_embeds is not None:  # Transformers does not scale these
            inputs_embeds = inputs_embeds / stack.embeddings.scale
        given: dict[str, Any] = {"input_ids": input_ids, "inputs_embeds": inputs_embeds}
        padded = Padded(
            **given,
            attention_mask=attention_mask,
            head_mask=head_mask,
            keep=kept_layers(stack, wanted(self, options, "output_attentions")),
        )
        check_inputs(stack, given, padded.size)
        packed = pack(padded, stack.config, dense=not self.packed)
        keep_hidden = bool(wanted(self, options, "output_hidden_states"))
        hidden, states = stack(packed.batch, packed.context, keep_hidden=keep_hidden)
        values: dict[str, Any] = {"last_hidden_state": packed.padded(hidden)}
        if states:
            values["hidden_states"] = tuple(map(packed.padded, states))
        if padded.keep:
            values |= attention_weights(packed, padded, stack)
        return ModelOutput(_ENCODER, values)

    def _decode(self, given: dict[str, Any], encoded: Tensor) -> dict[str, Any]:
        """Scores (B, T, V) of each next token, and what else of the decoder is asked for."""
        stack, labels = self._decoder, given.get("labels")
        ids, embeds = given.get("decoder_input_ids"), given.get("decoder_inputs_embeds")
        if ids is None and embeds is None:
            if labels is None:
                raise InputError("give decoder_input_ids, or labels to be written")
            ids = self.prepare_decoder_input_ids_from_labels(labels)
        mask = given.get("decoder_attention_mask")
        padded = Padded(
            input_ids=ids,
            inputs_embeds=embeds,
            attention_mask=mask,
            encoder_hidden_states=encoded,
            encoder_attention_mask=given.get("attention_mask"),
            cache=cache_of(self, stack.config, given),
            keep=kept_layers(stack, wanted(self, given, "output_attentions")),
        )
        inputs = {"decoder_input_ids": ids, "decoder_inputs_embeds": embeds}
        inputs["encoder_hidden_states"] = encoded
        inputs["encoder_attention_mask"] = padded.encoder_attention_mask
        check_inputs(stack, inputs, padded.size, "decoder_")
        # A label may stand at padding.
        dense = not self.packed or (labels is not None and mask is not None)
        packed = pack(padded, stack.config, dense=dense)
        keep_hidden = bool(wanted(self, given, "output_hidden_states"))
        out = self.model(packed.batch, context=packed.context, keep_hidden=keep_hidden)
        values: dict[str, Any] = {"logits": packed.padded(out.logits["generator"])}
        if padded.cache is not None:
            values["past_key_values"] = padded.cache
        if out.hidden_states:
            values["decoder_hidden_states"] = tuple(map(packed.padded, out.hidden_states))
        if padded.keep:
            weights = attention_weights(packed, padded, stack)
            values["decoder_attentions"] = weights.pop("attentions")
            values |= weights
        return values

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        bad_words_ids: Sequence[Sequence[int]] | None = None,
        use_cache: bool = True,
        **others: Any,
    ) -> Tensor:
        """(B, S) -> (B, T): the start, what is written, the end, and padding up to the longest.

        Greedy, or with ``num_beams`` a beam search that ranks finished texts by the length penalty
        of Wu et al. 2016 (equation 14); Transformers' is another, so it may choose another of the
        beams. ``max_length`` (20 by default) counts the start too.
        """
        check_tensors({"input_ids": input_ids, "attention_mask": attention_mask})
        config = self.config
        for name, value in _OTHERWISE.items():
            if others.pop(name, value) != value:
                raise InputError(f"generate writes the likeliest here; {name} must be {value}")
        names = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
        end, pad, start, last = (others.pop(n, getattr(config, n, None)) for n in names)
        refuse(f"{type(self).__name__}.generate", others, (*_OTHERWISE, *names, "num_beams"))

        def option(value: Any, name: str, usual: Any) -> Any:
            return getattr(config, name, None) or usual if value is None else value

        longest = max_new_tokens
        if longest is None:
            longest = option(max_length, "max_length", 20) - 1
        if longest < 1:
            raise InputError(f"max_length is {longest + 1}; it must be 2 or more, with the start")
        if not isinstance(end, int):
            raise InputError(f"eos_token_id is {end!r}; one token is needed")
        words = option(bad_words_ids, "bad_words_ids", ())
        if any(len(word) != 1 for word in words):
            raise InputError("bad_words_ids can forbid single tokens only")
        if attention_mask is None:
            attention_mask = guessed_mask(input_ids, pad, [end])
        if not bool((attention_mask == 1).any(1).all()):
            raise InputError("a text has no token: its attention_mask is all zeros")
        source, _ = from_padded(input_ids, attention_mask == 1)
        beams = option(num_beams, "num_beams", 1)
        settings: dict[str, Any] = {
            "start": start,
            "end": end,
            "longest": [longest] * len(input_ids),
            "banned": [word[0] for word in words],
            "cached": use_cache,
        }
        if beams > 1:
            settings["length_penalty"] = option(length_penalty, "length_penalty", 1.0)
            found = beam_search(self.model, source, beams=beams, **settings)
        else:
            found = greedy(self.model, source, **settings)
        rows = []
        for written in found:
            if written.ended:
                rows.append([start, *written.ids, end])
            else:
                rows.append([start, *written.ids[:-1], written.ids[-1] if last is None else last])
        width = max(map(len, rows))
        rows = [row + [pad] * (width - len(row)) for row in rows]
        return torch.tensor(rows, device=input_ids.device)

    # ---- folders

    def _fill(self, folder: Path, *, mismatched: bool = False) -> dict[str, list[Any]]:
        if mismatched:
            raise InputError("ignore_mismatched_sizes cannot be done for marian")
        tensors, path = read_weights(folder)
        problems = copy_weights(self.model, tensors, self.weight_map).problems
        if problems:
            raise InputError(f"{path} does not fit its {CONFIG}: {'; '.join(first_of(problems))}")
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        floating = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
        return {**{kind: [] for kind in kinds}, "dtype": [next(floating)]}

    def _write(self, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> None:
        values = {**self.config.to_dict(), "dtype": str(self.dtype).removeprefix("torch.")}
        save_translation(self.model, folder, values=values, tokenizer=tokenizer)


MarianConfig.__module__ = MarianMTModel.__module__ = "ownbert.hf"
