"""The call of a model as that of a class of Transformers: padded tensors in, named padded outputs
out, and the losses of its labels.

B sequences, S longest sequence, V vocabulary, C choices or classes. The label -100 is ignored.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert import checkpoint
from ownbert.checks import known, maybe
from ownbert.exceptions import InputError, in_short
from ownbert.families import all_families
from ownbert.families.mapping.family import ArchitectureSpec, Family
from ownbert.nn.context import Cache
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from ownbert.transformers.padded_inputs import (
    PackedInputs,
    check_inputs,
    check_range,
    check_shape,
    check_tensors,
    pack,
    pack_images,
)

_PER_SEQUENCE = ("nsp", "sop", "classification", "choice")
_PER_TOKEN = (
    *("input_ids", "attention_mask", "token_type_ids", "task_type_ids", "position_ids"),
    "inputs_embeds",
)
_OTHER_LABEL = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
_OTHER_LOGITS = {"nsp": "seq_relationship_logits", "sop": "sop_logits"}
_BASE = (
    *("last_hidden_state", "pooler_output", "hidden_states", "past_key_values", "attentions"),
    "cross_attentions",
)
_CAUSAL = ("loss", "logits", "past_key_values", "hidden_states", "attentions", "cross_attentions")
NO_LABEL = -100
REGRESSION, ONE_LABEL = "regression", "single_label_classification"
MANY_LABELS = "multi_label_classification"
check_problem = maybe(known(REGRESSION, ONE_LABEL, MANY_LABELS))
# Accepted by every call, in addition to the arguments of its class.
_COMMON_ARGUMENTS = {"output_attentions", "output_hidden_states", "return_dict"}


class ModelOutput(OrderedDict):
    """Named values without None: ``out.logits``, ``out["logits"]``, ``out[0]``. As an attribute, an
    output of the class (one of ``fields``) that this call did not return is None."""

    def __init__(self, fields: Iterable[str] = (), values: Mapping[str, Any] | None = None) -> None:
        super().__init__((n, values[n]) for n in fields if values and values.get(n) is not None)
        self.__dict__["_fields"] = fields

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return super().__getitem__(name)
        if name in self.__dict__.get("_fields", ()):
            return None
        raise AttributeError(f"the output has no {name!r}; it has {', '.join(self)}")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in order, without None."""
        return tuple(self.values())


def logits_by_name(kinds: tuple[str, ...], logits: dict[str, Tensor]) -> dict[str, Tensor]:
    """The logits of each kind of head under the names of Transformers 4.57.6, in its order."""
    if kinds == ("span",):
        start, end = logits["span"].unbind(-1)
        return {"start_logits": start, "end_logits": end}
    if len(kinds) == 2:
        first, second = kinds
        return {"prediction_logits": logits[first], _OTHER_LOGITS[second]: logits[second]}
    return {"logits": logits[kinds[0]]} if kinds else {}


class Config(SimpleNamespace):
    """The values of a config.json as attributes, and the defaults of the family for other keys;
    ``vars`` of a config returns the values."""

    COMMON: ClassVar[Mapping[str, Any]] = {
        "output_attentions": False,
        "output_hidden_states": False,
        "return_dict": True,
        "problem_type": None,
        "use_cache": True,
    }

    def __init__(self, model_type: str, values: Mapping[str, Any]) -> None:
        super().__init__(**{**values, "model_type": model_type})

    def __reduce__(self) -> Any:
        return Config, (self.model_type, dict(vars(self)))

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__
        if not name.startswith("_") and "model_type" in values:
            family = all_families()[values["model_type"]]
            name = family.names.get(name, name)
            if name == "num_labels":
                return len(values.get("id2label") or ()) or 2
            for place in (values, family.defaults, self.COMMON):
                if name in place:
                    return place[name]
        raise AttributeError(f"the config has no {name!r}; vars(config) are its values")


@dataclass
class PaddedCall:
    """The call of a model with padded tensors, as that of a class of Transformers;
    ``skips_padding``: outputs at padding are zero, otherwise padding is processed, too."""

    architecture: str
    config: Config
    skips_padding: bool = True

    @property
    def family(self) -> Family:
        return all_families()[self.config.model_type]

    @property
    def spec(self) -> ArchitectureSpec:
        return self.family.architectures[self.architecture]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return tuple(self.family.calls.arguments(self.spec.kinds, self.spec.decoder))

    def __call__(self, model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The outputs of ``model(*args, **kwargs)``."""
        if torch.compiler.is_dynamo_compiling():
            # Without a graph: the lengths of the texts would be its constants.
            plain: Any = torch.compiler.disable(PaddedCall.__call__)
            return plain(self, model, args, kwargs)
        if torch.jit.is_tracing() or torch.compiler.is_exporting():  # pyright: ignore
            raise InputError(
                "a trace would hold the lengths of these texts as constants; ownbert export "
                "writes graphs for texts of any length ({--to torch}, onnx or openvino)"
            )
        names = self.arguments
        by_position = dict(zip(names, args, strict=False))
        for name in by_position.keys() & kwargs.keys():
            raise InputError("{architecture}: {name} is given twice", self.architecture, name)
        if len(args) > len(names):
            message = "{architecture} has {count} arguments, not {count2}"
            raise InputError(message, self.architecture, len(names), len(args))
        refuse(self.architecture, kwargs.keys() - _COMMON_ARGUMENTS - {*names}, names)
        return self._forward(model, {**by_position, **kwargs})

    def save(self, model: Model, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
        """Write the folder of a model, with the values of its config.json that are not its own."""
        values = {**vars(self.config), "dtype": str(model.dtype).removeprefix("torch.")}
        values.pop("torch_dtype", None)
        if "classification" in self.spec.kinds:  # which may have been set by the labels of a call
            values["problem_type"] = self.config.problem_type
        checkpoint.save(
            model, folder, tokenizer=tokenizer, architecture=self.architecture, values=values
        )

    def _forward(self, model: Model, arguments: dict[str, Any]) -> Any:
        """Compute the outputs for named arguments."""
        calls, spec, stack = self.family.calls, self.spec, model.encoder
        kinds = spec.kinds
        unsupported = [
            n for n in calls.unsupported if not (arguments.get(n) is None or arguments[n] is False)
        ]
        if unsupported or kinds == ("beam_span",):
            raise InputError(
                "{what} is not supported: use transformers.{architecture}, with "
                "ownbert.speed_up(model)",
                unsupported[0] if unsupported else self.architecture,
                self.architecture,
            )
        check_tensors(arguments, model.device)
        choices = None
        if kinds == ("choice",):
            arguments, choices = _flatten_choices(arguments)
        keep = _attention_layers(stack, self._option(arguments, "output_attentions"))
        if stack.config.image is not None:
            packed = pack_images(arguments, stack, keep)
        else:
            cache = self._cache(model, arguments)
            check_inputs(stack, arguments)
            dense = not self.skips_padding or _needs_padding(kinds, arguments, spec.decoder)
            dense = dense or (calls.memory and _pools_padding(model, arguments))
            tensors = {
                name: value.to(model.dtype)
                if name in ("inputs_embeds", "encoder_hidden_states")
                and value is not None
                and value.is_floating_point()
                else value
                for name, value in arguments.items()
            }
            packed = pack(tensors, stack.config, dense=dense, cache=cache, keep=keep)
        states = bool(self._option(arguments, "output_hidden_states"))
        if torch.is_grad_enabled() and (states or keep or not kinds):
            packed.context.returned = packed
        out = model.run(packed.batch, kinds, context=packed.context, keep_hidden=states)
        values: dict[str, Any] = logits_by_name(
            kinds,
            {k: x if k in _PER_SEQUENCE else packed.answers(x) for k, x in out.logits.items()},
        )
        if not kinds:
            values = {"last_hidden_state": packed.last_hidden(out), "pooler_output": out.pooled}
        if choices is not None:
            values["logits"] = values["logits"].view(choices)
        fields = ("loss", *values, "hidden_states", "attentions")
        if not kinds or spec.decoder:
            fields = _CAUSAL if kinds else _BASE
        values["loss"] = self._loss(values, arguments)
        values["past_key_values"] = packed.context.cache
        if states:
            values["hidden_states"] = packed.hidden_states(out, normed=calls.normed_states)
        if keep:
            values |= _attention_weights(packed, stack)
        named = ModelOutput(fields, values)
        return named if self._option(arguments, "return_dict") else named.to_tuple()

    def _option(self, arguments: Mapping[str, Any], name: str) -> Any:
        """An option of a call; by default that of the config. ``output_attentions`` may be a list
        of layers."""
        value = arguments.get(name)
        value = getattr(self.config, name) if value is None else value
        if isinstance(value, bool | int):
            return bool(value)
        if name == "output_attentions" and isinstance(value, list | tuple):
            return value
        raise InputError("{name} is {value}; it must be true or false", name, in_short(value))

    def _cache(self, model: Model, arguments: dict[str, Any]) -> Cache | None:
        """The cache that a call continues, or a new one if the call returns one."""
        past, config = arguments.get("past_key_values"), model.config
        if not config.is_decoder and past is not None:
            raise InputError("past_key_values needs a model with is_decoder true in its config")
        crosses = config.is_decoder and config.add_cross_attention
        if not crosses and arguments.get("encoder_hidden_states") is not None:
            raise InputError(
                "encoder_hidden_states needs a model with is_decoder and add_cross_attention true "
                "in its config"
            )
        if past is not None and not isinstance(past, Cache):
            raise InputError("past_key_values must be those returned by an earlier call")
        if past is not None or not config.is_decoder:
            return past
        if any(arguments.get(name) is not None for name in ("labels", "start_positions")):
            return None
        recomputes = model.training and model.encoder.gradient_checkpointing
        return Cache() if self._option(arguments, "use_cache") and not recomputes else None

    def _loss(self, values: dict[str, Any], arguments: dict[str, Any]) -> Tensor | None:
        """The loss of logits for the labels of a call; None without labels."""
        labels, kinds = arguments.get("labels"), self.spec.kinds
        if kinds == ("span",):
            return _span_loss(values, arguments)
        if len(kinds) == 2:
            name = _OTHER_LABEL[kinds[1]]
            other = arguments.get(name)
            if (labels is None) != (other is None):
                raise InputError("give both labels and {name}, or neither", name)
            if labels is None or other is None:
                return None
            first, second = values.values()
            sentence_loss = _cross_entropy(second, other, name)
            return _cross_entropy(first, labels) + sentence_loss
        if not kinds or labels is None:
            return None
        logits = values["logits"]
        if self.spec.decoder:
            return _causal_lm_loss(logits, labels)
        if kinds == ("classification",):
            if not self.family.calls.loss_by_shape or self.config.problem_type:
                return _sequence_loss(logits, labels, self.config)
            if logits.shape[-1] == 1:
                values["logits"] = logits.view(-1)  # as in Transformers
            return _loss_by_shape(logits, labels)
        if kinds == ("discriminator",):
            return _replaced_loss(logits, labels, arguments.get("attention_mask"))
        return _cross_entropy(logits, labels)


def refuse(who: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ``InputError`` for unknown arguments, suggesting a similar name."""
    for name in names:
        close = get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError("{who} has no argument {name!r}{hint}", who, name, hint)


def _flatten_choices(arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, int]]:
    """Choices (B, C, S) as (B x C, S), and (B, C)."""
    name = "input_ids" if arguments.get("input_ids") is not None else "inputs_embeds"
    tensor = arguments.get(name)
    if tensor is None or tensor.ndim != (3 if name == "input_ids" else 4):
        raise InputError("multiple choice needs input_ids of shape (batch, choices, length)")
    flat, size = dict(arguments), tuple(tensor.shape[:2])
    for key in _PER_TOKEN:
        if flat.get(key) is not None:
            if flat[key].shape[:2] != size:
                message = "{key} has shape {shape}; it must begin with {size}"
                raise InputError(message, key, tuple(flat[key].shape), size)
            flat[key] = flat[key].flatten(0, 1)
    return flat, size


def _attention_layers(stack: Encoder, option: Any) -> frozenset[int]:
    """Layers whose attention weights are requested by ``output_attentions``."""
    count = len(stack.schedule())
    if isinstance(option, bool):
        return frozenset(range(count)) if option else frozenset()
    wrong = [i for i in option if type(i) is not int or not -count <= i < count]
    if wrong:
        message = "output_attentions requests layer {wrong}; the layers are 0..{count}"
        raise InputError(message, in_short(wrong[0]), count - 1)
    return frozenset(layer % count for layer in option)


def _needs_padding(kinds: tuple[str, ...], arguments: dict[str, Any], decoder: bool) -> bool:
    """Whether a result depends on the model's values at padding: the softmax over answer positions
    includes padding, and labels may be at padding."""
    mask, labels = arguments.get("attention_mask"), arguments.get("labels")
    if mask is None or mask.ndim != 2:
        return False
    if kinds == ("span",):
        return True
    if labels is None or labels.numel() != mask.numel() or "discriminator" in kinds:
        return False
    labelled = (labels != NO_LABEL).view(mask.shape)
    if decoder:  # Tokens are predicted from the previous position.
        labelled = F.pad(labelled[:, 1:], (0, 1))
    return bool((labelled & (mask != 1)).any())


def _pools_padding(model: Model, arguments: Mapping[str, Any]) -> bool:
    """Whether XLNet's vector of a sequence is computed from tokens that are padding."""
    mask = arguments.get("attention_mask")
    for spec in model.specs.values():
        if mask is not None and spec.kind in ("classification", "choice"):
            read = {"last": mask[..., -1:], "first": mask[..., :1]}.get(spec.pooling, mask)
            return bool((read != 1).any())
    return False


def _attention_weights(packed: PackedInputs, stack: Encoder) -> dict[str, Any]:
    """Attention weights (B, H, S, S') of each layer, None for layers that were not kept; with a
    query stream, those of the tokens and of the stream."""
    context = packed.context
    weights: dict[str, Any] = {"attentions": packed.weights(context.attentions, context.layout)}
    if context.cross is not None:
        weights["cross_attentions"] = packed.weights(context.cross_attentions, context.cross)
    if context.query_stream is not None:
        second = packed.weights(context.query_attentions, context.layout)
        weights["attentions"] = {i: (w, second[i]) for i, w in weights["attentions"].items()}
    count = len(stack.schedule())
    return {name: tuple(layers.get(i) for i in range(count)) for name, layers in weights.items()}


def _class_labels(
    name: str, labels: Tensor, shape: tuple[int, ...], classes: int, ignored: int = NO_LABEL
) -> Tensor:
    """Flatten labels; raise ``InputError`` for a wrong shape, dtype or class."""
    if labels.numel() != math.prod(shape):
        check_shape(name, labels, tuple(shape))
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            "{name} contains {dtype}; it must contain whole numbers, torch.long", name, labels.dtype
        )
    if labels.device.type == "cpu":
        check_range(name, labels[labels != ignored], classes, "classes")
    return labels.flatten().long()


def _causal_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of the next token."""
    _class_labels("labels", labels, logits.shape[:-1], logits.shape[-1])
    targets = F.pad(labels.long(), (0, 1), value=NO_LABEL)[..., 1:]
    return _cross_entropy(logits.float(), targets)


def _cross_entropy(logits: Tensor, labels: Tensor, name: str = "labels") -> Tensor:
    """Mean cross entropy of logits (..., C) and labels (...)."""
    targets = _class_labels(name, labels, logits.shape[:-1], logits.shape[-1])
    return F.cross_entropy(logits.flatten(0, -2), targets, ignore_index=NO_LABEL)


def _sequence_loss(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """The loss for logits (B, C) and labels of sequences, selected by ``config.problem_type``.

    If this is None, it is set: regression (mean squared error) for a single output, single-label
    (cross entropy) for integer labels, else multi-label (binary cross entropy).
    """
    if config.problem_type is None:
        integers = labels.dtype in (torch.long, torch.int)
        several = ONE_LABEL if integers else MANY_LABELS
        config.problem_type = REGRESSION if logits.shape[-1] == 1 else several
    check_problem("problem_type", config.problem_type)
    if config.problem_type == ONE_LABEL:
        return _cross_entropy(logits, labels)
    if labels.numel() != logits.numel():
        message = "labels has shape {shape}; for {problem_type} it must be {logits_shape}"
        raise InputError(message, tuple(labels.shape), config.problem_type, tuple(logits.shape))
    targets = labels.view(logits.shape).to(logits.dtype)
    if config.problem_type == REGRESSION:
        return F.mse_loss(logits, targets)
    return F.binary_cross_entropy_with_logits(logits, targets)


def _loss_by_shape(logits: Tensor, labels: Tensor) -> Tensor:
    """DeBERTa's loss for logits (B, C) if ``config.problem_type`` is None.

    Regression (mean squared error) for a single output; cross entropy for class indices (B) or
    (B, 1), ignoring negative ones; or cross entropy with distributions (B, C).
    """
    count = logits.shape[-1]
    if labels.numel() not in (len(logits), logits.numel()):
        check_shape("labels", labels, (len(logits),), tuple(logits.shape))
    if count == 1:
        return F.mse_loss(logits.view(-1).to(labels.dtype), labels.view(-1))
    if labels.ndim > 1 and labels.shape[-1] > 1:
        return -(logits.log_softmax(-1) * labels).sum(-1).mean()
    classes = labels.flatten()
    labelled = classes >= 0
    if not bool(labelled.any()):
        return logits.new_zeros(())
    return _cross_entropy(logits[labelled].float(), classes[labelled])


def _span_loss(values: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> Tensor | None:
    """Mean of the cross entropies of an answer's start and end; None if neither is given.

    Args:
        values: (B, S) start_logits and end_logits.
        arguments: (B) start_positions and end_positions; positions beyond S are ignored.
    """
    losses = []
    missing = [arguments.get(f"{name}_positions") is None for name in ("start", "end")]
    if all(missing):
        return None
    if any(missing):
        raise InputError("give both start_positions and end_positions, or neither")
    for name in ("start", "end"):
        logits, positions = values[f"{name}_logits"], f"{name}_positions"
        rows, size = logits.shape
        targets = _class_labels(positions, arguments[positions].clamp(0, size), (rows,), size, size)
        losses.append(F.cross_entropy(logits, targets, ignore_index=size))
    return (losses[0] + losses[1]) / 2


def _replaced_loss(logits: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean binary cross entropy of logits (B, S) over non-padding tokens."""
    check_shape("labels", labels, tuple(logits.shape))
    labels = labels.float()
    if attention_mask is not None:
        seen = attention_mask == 1
        logits, labels = logits[seen], labels[seen]
    return F.binary_cross_entropy_with_logits(logits, labels)
