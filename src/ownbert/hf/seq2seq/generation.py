"""Greedy generation with a causal language model, like Transformers' ``generate`` by default.

B sequences, S longest sequence.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ownbert import limits
from ownbert.checks import any_number, count, either, known, list_of, maybe, record, truth, whole
from ownbert.exceptions import InputError, in_short, warn_of_input
from ownbert.files.json_files import read_json, write_json
from ownbert.hf.forward_pass.inputs import PaddedInputs, check_inputs, check_tensors

# Arguments of ``generate`` that select other strategies, with their required values.
_FIXED = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "penalty_alpha": None}

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_FILE = "generation_config.json"
_OPTIONS = ("max_new_tokens", "max_length", "eos_token_id", "pad_token_id")
_LENGTH = 20  # default of max_length
# Options of Transformers that change its texts, with their neutral values.
_NEUTRAL = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), 1),
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "renormalize_logits": False,
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens", "early_stopping"), 0),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"), None),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "sequence_bias"), None),
    **dict.fromkeys(("exponential_decay_length_penalty", "max_time", "stop_strings"), None),
    **dict.fromkeys(("constraints", "force_words_ids", "watermarking_config"), None),
}
_OUTPUTS = ("return_dict_in_generate", "output_scores", "output_logits")
# Options of sampling: no effect on other strategies, as in Transformers.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
_token = whole(-(2**62), 2**62)
_CHECKS = {
    "max_new_tokens": count(1, limits.COUNT),
    "max_length": count(1, limits.COUNT),
    "num_beams": count(1, limits.BEAMS),
    "length_penalty": any_number,
    "early_stopping": either(truth, known("never"), wanted="true, false or 'never'"),
    "pad_token_id": _token,
    "decoder_start_token_id": _token,
    "eos_token_id": either(_token, list_of(_token), wanted="a token id or a list of them"),
    "forced_eos_token_id": _token,
    "bad_words_ids": list_of(list_of(_token)),
}
_check_values = record({name: maybe(check) for name, check in _CHECKS.items()})


class Generating:
    """Adds settings of ``generate`` to a model, from generation_config.json if present."""

    generation_values: Mapping[str, Any] = {}

    @property
    def generation_config(self) -> Any:
        """Transformers' ``GenerationConfig`` from the folder and the model's config.

        Raises:
            AttributeError: Transformers is not installed, so nothing can need it.
        """
        if "_generation_config" not in self.__dict__:
            self.__dict__["_generation_config"] = _generation_config(self)
        return self.__dict__["_generation_config"]

    @generation_config.setter
    def generation_config(self, value: Any) -> None:
        self.__dict__["_generation_config"] = value

    def generation_options(self, given: Any, names: Sequence[str]) -> dict[str, Any]:
        """Options of ``generate`` by name, from the given config or the model's own."""
        if given is not None and not hasattr(given, "to_diff_dict"):
            kind = type(given).__name__
            raise InputError(f"generation_config is a {kind}; it must be a GenerationConfig")
        config: Any = self.config  # pyright: ignore
        stored = given or self.__dict__.get("_generation_config")
        values = vars(config) if stored is None else vars(stored)
        if stored is None and self.generation_values:
            values = self.generation_values
        values = {name: value for name, value in values.items() if value is not None}
        ignored = [
            name
            for name, neutral in _NEUTRAL.items()
            if name not in names and values.get(name, neutral) not in (neutral, [], {})
        ]
        if ignored:
            warn_of_input(
                f"generate ignores {', '.join(f'{n} {in_short(values[n])}' for n in ignored)} of "
                "the generation config, so its texts may differ from those of Transformers"
            )
        return {name: values[name] for name in names if name in values}

    def require_fixed(
        self,
        fixed: Mapping[str, Any],
        known: Mapping[str, Any],
        others: dict[str, Any],
        given: Any,
        how: str,
        supported: Collection[str] = (),
    ) -> None:
        """Remove options that have only one value, or no effect, from the arguments.

        Args:
            known: options of the generation config, used if they are not arguments.
            given: the generation config of the call, or None for the model's.
            how: what ``generate`` does, for messages.
            supported: arguments that may have any value.

        Raises:
            InputError: an option has another value.
        """
        for name in others.keys() & {*_SAMPLING}:
            del others[name]
        neutral = {**_NEUTRAL, **dict.fromkeys(_OUTPUTS, False)}
        for name in sorted((others.keys() & neutral.keys()) - {*supported}):
            if others.pop(name) not in (None, neutral[name]):
                raise InputError(f"generate {how} here; {name} must be {neutral[name]}")
        for name, value in fixed.items():
            if name in others:
                if others.pop(name) not in (None, value):
                    raise InputError(f"generate {how} here; {name} must be {value}")
            elif known.get(name, value) != value:
                stored = given or self.__dict__.get("_generation_config")
                file = self.__dict__.get("generation_file") if stored is None else None
                raise InputError(
                    f"{file or 'the generation config'}: {name} is {in_short(known[name])}, but "
                    f"generate {how} here; give it {name}={value}"
                )

    def check_call(self, input_ids: Any, attention_mask: Any, options: Mapping[str, Any]) -> None:
        """Raise ``InputError`` for arguments of ``generate`` of a wrong type or shape."""
        check_tensors({"input_ids": input_ids, "attention_mask": attention_mask})
        size = PaddedInputs(input_ids).size
        check_inputs(self.model.encoder, {"input_ids": input_ids}, size)  # pyright: ignore
        if attention_mask is not None and attention_mask.shape != size:
            shape = tuple(attention_mask.shape)
            raise InputError(f"attention_mask has shape {shape}; it must be {size}")
        for name in options.keys() & _CHECKS.keys():
            if options[name] is not None and not hasattr(options[name], "tolist"):  # tensor, array
                _CHECKS[name](name, options[name])

    def most_new_tokens(
        self, known: Mapping[str, Any], new: int | None, total: int | None, given: int
    ) -> int:
        """The maximum number of tokens after ``given`` ones, as in Transformers.

        Args:
            known: options of the generation config, used if neither number is an argument.
            new, total: the arguments ``max_new_tokens`` and ``max_length``.
        """
        if new is None and total is None:
            new, total = known.get("max_new_tokens"), known.get("max_length")
            total = total or self.config.max_length or _LENGTH  # pyright: ignore
            if total == _LENGTH:  # the default is that many new tokens
                positions = getattr(self.config, "max_position_embeddings", None)  # pyright: ignore
                total = min(_LENGTH + given, positions or limits.LENGTH)
        return total - given if new is None else new  # pyright: ignore

    def _read_generation(self, folder: Path) -> None:
        values = read_json(folder / _FILE, missing={}, check=_check_values)
        self.__dict__["generation_values"] = values
        self.__dict__["generation_file"] = folder / _FILE if values else None

    def _write_generation(self, folder: Path) -> None:
        stored = self.__dict__.get("_generation_config")
        config: Any = self.config  # pyright: ignore
        ids = {name: getattr(config, name, None) for name in _IDS}
        values = {name: value for name, value in ids.items() if value is not None}
        values |= self.generation_values if stored is None else stored.to_diff_dict()
        write_json(folder / _FILE, values)


class GreedyGeneration(Generating):
    """Adds ``generate`` to a model with a causal head."""

    @torch.no_grad()
    def generate(
        self,
        input_ids: Any = None,
        attention_mask: Tensor | None = None,
        *,
        generation_config: Any = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **others: Any,
    ) -> Tensor:
        """Append the most probable next token until all texts have ended.

        Args:
            input_ids: (B, S), with left padding; also as ``inputs``.
            attention_mask: (B, S), 1 for tokens; by default all but padding.
            generation_config: Transformers' config, for options that are not given.
            max_new_tokens: maximum number of appended tokens.
            max_length: maximum number of all tokens; by default 20 more than the input has.
            eos_token_id, pad_token_id: by default the config's.
            others: further arguments of the forward pass.

        Returns:
            (B, S + new) ids; texts that end early are padded.

        Raises:
            InputError: an option is not supported, or no token may be appended.
        """
        model: Any = self
        input_ids = others.pop("inputs", None) if input_ids is None else input_ids
        options = max_new_tokens, max_length, eos_token_id, pad_token_id
        self.check_call(input_ids, attention_mask, dict(zip(_OPTIONS, options, strict=True)))
        known = self.generation_options(generation_config, (*_FIXED, *_OPTIONS))
        for name in others.keys() & {"early_stopping", "length_penalty"}:
            del others[name]  # options of a beam search
        self.require_fixed(_FIXED, known, others, generation_config, "is greedy")
        eos_token_id = known.get("eos_token_id") if eos_token_id is None else eos_token_id
        pad_token_id = known.get("pad_token_id") if pad_token_id is None else pad_token_id
        ends = model.config.eos_token_id if eos_token_id is None else eos_token_id
        ends = [ends] if isinstance(ends, int) else ends or []
        pad = model.config.pad_token_id if pad_token_id is None else pad_token_id
        length = input_ids.shape[1]
        max_new_tokens = self.most_new_tokens(known, max_new_tokens, max_length, length)
        if max_new_tokens < 1:
            raise InputError(
                f"the input has {length} tokens; max_length must be larger, or give max_new_tokens"
            )
        if attention_mask is None:
            attention_mask = default_mask(input_ids, pad, ends)
        done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        cached, types = others.pop("use_cache", True), others.get("token_type_ids")
        past, ids = None, input_ids
        for _ in range(max_new_tokens):
            given = ids if past is None else ids[:, -1:]
            extra = {"position_ids": _positions(attention_mask, given.shape[1]), **others}
            kept = {"past_key_values": past, "use_cache": cached, "return_dict": True}
            out = model(given, attention_mask, **kept, **extra)
            past = out.past_key_values if cached else None
            if types is not None:  # a new token has the type of the last given one
                new = types[..., -1:]
                others["token_type_ids"] = types = new if cached else torch.cat((types, new), -1)
            token = out.logits[:, -1].argmax(-1)
            token = torch.where(done, torch.full_like(token, pad), token)
            ids = torch.cat((ids, token[:, None]), 1)
            attention_mask = torch.cat((attention_mask, attention_mask.new_ones(len(ids), 1)), 1)
            done = done | torch.isin(token, torch.tensor(ends, device=token.device))
            if bool(done.all()):
                break
        return ids


def _generation_config(model: Any) -> Any:
    try:
        from transformers import GenerationConfig
    except ImportError:
        raise AttributeError("generation_config needs Transformers") from None
    names = [name for name in vars(GenerationConfig()) if not name.startswith("_")]
    values = vars(model.config)
    known = {k: values[k] for k in names if values.get(k) is not None}
    return GenerationConfig(**{**known, **model.generation_values})


def banned_tokens(
    words: Sequence[Sequence[int]], ends: Sequence[int], vocab_size: int
) -> list[int]:
    """The tokens of ``bad_words_ids``; as in Transformers, end tokens are not banned.

    Raises:
        InputError: a word has several tokens, or is not in the vocabulary.
    """
    if any(len(word) != 1 for word in words):
        raise InputError("bad_words_ids can only forbid single tokens")
    for (token,) in words:
        if not 0 <= token < vocab_size:
            raise InputError(f"bad_words_ids contains {token}; there are {vocab_size:,} tokens")
    return [token for (token,) in words if token not in ends]


def default_mask(ids: Tensor, pad: int, ends: list[int]) -> Tensor:
    """(B, S): 0 for padding, unless the padding token also ends texts; else all ones."""
    if pad in ends or not bool((ids == pad).any()):
        return torch.ones_like(ids)
    return (ids != pad).long()


def _positions(mask: Tensor, count: int) -> Tensor:
    """(B, count): positions of the last tokens, not counting left padding."""
    return ((mask.long().cumsum(1) - 1).masked_fill(mask == 0, 1))[:, -count:]
