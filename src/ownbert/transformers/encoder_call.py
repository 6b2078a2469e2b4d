"""A call of an encoder of Transformers, computed by its packed network or by Transformers.

B sequences, S longest sequence, D hidden, R tokens of XLNet's memory.
"""

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ownbert.exceptions import InputError
from ownbert.transformers.encoder_network import (
    EncoderNetwork,
    Facts,
    NotSupported,
    evaluating,
    require_encoder,
)
from ownbert.transformers.padded_inputs import check_inputs, pack, padded_size

log = logging.getLogger("ownbert.speed_up")

# Whether the caller's result does not depend on the values at padding; None: the encoder's default.
padding_is_unread: ContextVar[bool | None] = ContextVar("padding_is_unread", default=None)

# Positions (M) of the B x S hidden states that the caller wants, as one sequence (1, M, D).
wanted_positions: ContextVar[Tensor | None] = ContextVar("wanted_positions", default=None)

_TENSORS = (
    *("input_ids", "attention_mask", "token_type_ids", "task_type_ids", "position_ids"),
    *("inputs_embeds", "perm_mask", "target_mapping"),
)
# Those of ModernBERT are of batches that it has packed itself; the last one is of the loss.
_OPTIONS = {
    *("output_hidden_states", "output_attentions", "return_dict", "use_mems"),
    *("batch_size", "seq_len", "num_items_in_batch"),
}
_DTYPES = (torch.float32, torch.bfloat16)
_DEVICES = ("cpu", "cuda")
# Tokens of a part of a large batch. One of 16,000 takes a quarter longer than two of 8,000 with 6
# layers of 384 (AMD Zen 5).
_TOKENS = 8192
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Hooks of Transformers 5 that do nothing unless Transformers computes the call.
_OF_TRANSFORMERS = "transformers.utils."
# Layers that compute the same in training and evaluation.
_ALWAYS_ALIKE = (nn.Linear, nn.Embedding, nn.LayerNorm)
# The comparison with Transformers: two rows, one of which is padded.
_LENGTHS = (6, 4)
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}


@dataclass
class FastEncoder:
    """The packed network of an encoder, and what was computed by it and by Transformers.

    Args:
        network: the packed network; None: not supported, for a ``reason``.
        calls: number of calls that the packed network computed.
        reasons: reasons why others were left to Transformers, with their numbers.
    """

    skips_padding: bool = False
    network: EncoderNetwork | None = None
    reason: str = ""
    calls: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    facts: Facts | None = None

    def __call__(self, model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of ``model(*args, **kwargs)``; ``original`` is Transformers' forward pass."""
        try:
            require_plain_run()
            self._prepare(model, original)
            result = self._compute(model, named(original, model, args, kwargs))
        except (NotSupported, InputError) as error:
            reason = str(error)
        else:
            self.calls += 1
            return _wanted(result)
        if reason not in self.reasons:
            name = type(model).__name__
            log.warning("%s: Transformers computes such calls itself: %s", name, reason)
        self.reasons[reason] += 1
        return _wanted(original(model, *args, **kwargs))

    def _prepare(self, model: Any, original: Callable[..., Any]) -> None:
        """Build the network, or again if layers have changed since."""
        if self.facts is None or not self.facts.hold():
            self.facts, self.network, self.reason = None, None, ""
            _require_plain_parameters(model.parameters(), model)
            self.facts = Facts(model)
            try:
                network = EncoderNetwork(model)
                _compare(network, model, original)
                self.network = network
            except NotSupported as reason:
                self.reason = str(reason)
        if self.network is None:
            raise NotSupported(self.reason)

    def prepare(self, model: Any, original: Callable[..., Any]) -> None:
        """Build the network now; a reason not to use it is logged."""
        try:
            self._prepare(model, original)
        except NotSupported as reason:
            log.warning("%s: Transformers computes it itself: %s", type(model).__name__, reason)

    def _compute(self, model: Any, arguments: dict[str, Any]) -> Any:
        assert self.network is not None
        assert self.facts is not None
        require_encoder(model.config)
        _require_plain_layers(model, self.facts)
        _require_plain_parameters(self.network.parameters(), model)
        unread = padding_is_unread.get()
        skips = self.skips_padding if unread is None else unread
        skips &= not model._forward_hooks  # which read the hidden states
        return compute(self.network, model, arguments, skips_padding=skips)


def require_plain_run() -> None:
    """Check that PyTorch runs in the ordinary way."""
    if torch.compiler.is_compiling():
        raise NotSupported("it is compiled")
    if torch.jit.is_tracing():  # pyright: ignore
        raise NotSupported("it is traced")
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore
        raise NotSupported("it is called inside a function transform of torch.func")
    if torch.autograd.forward_ad._current_level >= 0:
        raise NotSupported("forward-mode derivatives")
    if torch.is_autocast_enabled("cuda"):
        raise NotSupported("autocast on a GPU")
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        raise NotSupported("there are hooks on all modules")
    if hooks._global_backward_hooks or hooks._global_backward_pre_hooks:
        raise NotSupported("there are hooks on all modules")


def _require_plain_layers(model: nn.Module, facts: Facts) -> None:
    training = model.training
    for module in facts.modules:
        attributes = module.__dict__
        if attributes["training"] is not training and type(module) not in _ALWAYS_ALIKE:
            raise NotSupported("some layers are in training mode and others are not")
        if module is model:
            continue
        if "forward" in attributes:
            raise NotSupported(f"the forward pass of a {type(module).__name__} was replaced")
        for name in _HOOKS:
            for hook in attributes[name].values() if attributes[name] else ():
                if not str(getattr(hook, "__module__", "")).startswith(_OF_TRANSFORMERS):
                    raise NotSupported(f"there is a hook on a {type(module).__name__}")
        if training and attributes.get("gradient_checkpointing", False):
            raise NotSupported("gradient checkpointing")


def _require_plain_parameters(parameters: Iterable[Any], model: Any) -> None:
    dtype, device = model.dtype, model.device
    for parameter in parameters:
        if type(parameter) not in (nn.Parameter, Tensor):
            raise NotSupported(f"a parameter is a {type(parameter).__name__}")
        if parameter.dtype != dtype or parameter.device != device:
            raise NotSupported("its parameters have several dtypes or devices")
    if dtype not in _DTYPES:
        raise NotSupported(f"its parameters are {dtype}")
    if device.type not in _DEVICES:
        raise NotSupported(f"its parameters are on the device {device.type}")


def named(
    original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call that are not None, by name."""
    arguments = dict(kwargs)
    if args:
        try:
            bound = inspect.signature(original).bind(model, *args, **kwargs).arguments
        except TypeError:
            raise NotSupported("arguments that its forward pass does not accept") from None
        arguments = dict(list(bound.items())[1:])
        arguments |= arguments.pop("kwargs", {})
    return {name: value for name, value in arguments.items() if value is not None}


def compute(
    network: EncoderNetwork, model: Any, arguments: dict[str, Any], *, skips_padding: bool
) -> Any:
    """The result of a call with named arguments."""
    states = _option(model, arguments, "output_hidden_states")
    if hasattr(model, "warn_if_padding_and_no_attention_mask") and "input_ids" in arguments:
        model.warn_if_padding_and_no_attention_mask(
            arguments["input_ids"], arguments.get("attention_mask")
        )
    tensors = {name: arguments[name] for name in _TENSORS if name in arguments}
    for name, value in arguments.items():
        if name in tensors or name in _OPTIONS or (name == "use_cache" and not value):
            continue
        raise NotSupported(f"the argument {name}")
    if not isinstance(states, bool) or _option(model, arguments, "output_attentions"):
        raise NotSupported("attention weights, or some hidden states, are returned")
    _require_plain_tensors(tensors, network, model)
    memory = network.family.calls.memory
    by_default = "use_mems_train" if model.training else "use_mems_eval"
    mems = memory and bool(arguments.get("use_mems", getattr(model.config, by_default, False)))
    if memory and "token_type_ids" not in arguments and torch.is_grad_enabled():
        raise NotSupported("there are no token_type_ids")
    # The last token of a text of MobileBERT reads the word of the padding after it.
    neighbours = network.config.mobile is not None and network.config.mobile.trigram_input
    dense = states or mems or neighbours or not skips_padding
    whole = mems or torch.is_grad_enabled() or (dense and network.config.local_attention)
    parts = [] if whole else _parts_of_rows(tensors, dense=dense)
    count = max(map(len, tensors.values()))  # position_ids may be those of all rows
    batches = [
        {name: x[rows] if len(x) == count else x for name, x in tensors.items()} for rows in parts
    ]
    found = [
        _run(network, model, batch, dense=dense, states=states, mems=mems)
        for batch in (batches or [tensors])
    ]
    values = _joined(found, torch.cat(parts).argsort()) if parts else found[0]
    if arguments.get("return_dict", getattr(model.config, "return_dict", True)):
        return network.output(**values)
    none = network.has_pooler or network.keeps_none
    return tuple(
        value
        for name, value in values.items()
        if value is not None or (name == "pooler_output" and none)
    )


def _parts_of_rows(tensors: Mapping[str, Tensor], *, dense: bool) -> list[Tensor]:
    """Numbers of the rows of a large batch, in parts of similar lengths that fit into the caches of
    the processor; nothing if the batch is one part."""
    inputs = tensors.get("input_ids", tensors.get("inputs_embeds"))
    assert inputs is not None
    (count, length), mask = inputs.shape[:2], tensors.get("attention_mask")
    if inputs.device.type != "cpu" or count == 1 or count * length <= _TOKENS:
        return []
    lengths = torch.full((count,), length)
    if mask is not None and mask.ndim == 2 and not dense:
        lengths = (mask != 0).sum(1)
    longest_first = lengths.argsort(descending=True)
    part = (lengths[longest_first].cumsum(0) - 1).clamp(min=0) // _TOKENS
    sizes = [size for size in part.bincount().tolist() if size]
    return list(longest_first.split(sizes)) if len(sizes) > 1 else []


def _joined(parts: list[dict[str, Any]], order: Tensor) -> dict[str, Any]:
    def join(values: list[Any]) -> Any:
        if isinstance(values[0], tuple):
            return tuple(join(list(layer)) for layer in zip(*values, strict=True))
        return None if values[0] is None else torch.cat(values)[order]

    return {name: join([part[name] for part in parts]) for name in parts[0]}


def _run(
    network: EncoderNetwork,
    model: Any,
    tensors: Mapping[str, Any],
    *,
    dense: bool,
    states: bool,
    mems: bool,
) -> dict[str, Any]:
    """The values of an output."""
    packed = pack(tensors, network.config, dense=dense)
    if network.config.local_attention and packed.context.layout.mask is not None:
        # What padding that sees no token computes depends on the implementation of attention.
        raise NotSupported("values at padding of a model with local attention")
    if states and torch.is_grad_enabled():
        packed.context.returned = packed
    out = network.run(
        packed.batch, packed.context, training=model.training, keep_hidden=states or mems
    )
    values = {"last_hidden_state": packed.last_hidden(out), "pooler_output": out.pooled}
    if network.family.calls.memory:
        values["mems"] = None
    if mems:  # the input of each layer, (R, B, D), at the last ``mem_len`` tokens
        length, reused = model.config.mem_len or 0, model.config.reuse_len or 0
        inputs = [packed.shown(rows)[0].transpose(0, 1) for rows in out.hidden_states[:-1]]
        inputs = [hidden[:reused] if reused > 0 else hidden for hidden in inputs]
        values["mems"] = tuple(hidden[-length:].detach() for hidden in inputs)
    if states:
        values["hidden_states"] = packed.hidden_states(out, normed=network.normed)
    fields = network.output.__dataclass_fields__
    return {name: value for name, value in values.items() if name in fields}


def _option(model: Any, arguments: Mapping[str, Any], name: str) -> Any:
    value = arguments.get(name)
    return getattr(model.config, name, False) if value is None else value


def _require_plain_tensors(tensors: Mapping[str, Any], network: EncoderNetwork, model: Any) -> None:
    device, dtype = model.device, model.dtype
    for name, value in tensors.items():
        if type(value) not in (Tensor, nn.Parameter):
            raise NotSupported(f"{name} is a {type(value).__name__}")
        if value.device != device:
            raise NotSupported(f"{name} is on another device")
        if value.ndim < 2:
            raise NotSupported(f"{name} has {value.ndim} dimensions")
        if value.requires_grad and name != "inputs_embeds":
            raise NotSupported(f"{name} needs a gradient")
    size, embeds = padded_size(tensors), tensors.get("inputs_embeds")
    if embeds is not None and embeds.dtype != dtype:
        raise NotSupported(f"inputs_embeds contains {embeds.dtype}")
    check_inputs(network.net.encoder, tensors)
    mask, positions = tensors.get("attention_mask"), tensors.get("position_ids")
    if mask is not None:
        if mask.shape != size:
            raise NotSupported(f"an attention_mask with {mask.ndim} dimensions or another length")
        if not bool((mask == 1).any(1).all()):
            raise NotSupported("a sequence without tokens")
    elif positions is not None and not bool((positions.diff() == 1).all()):
        # Transformers 5 takes them for several texts in one row, which do not see each other.
        raise NotSupported("position_ids that begin again, without an attention_mask")


@torch.no_grad()
def _compare(network: EncoderNetwork, model: Any, original: Callable[..., Any]) -> None:
    """Compare the packed network with Transformers on a small batch, and note the form of the
    results."""
    size = len(_LENGTHS), max(_LENGTHS)
    lengths = (max(_LENGTHS),) * 2 if network.config.local_attention else _LENGTHS
    count = network.config.vocab_size
    ids = (torch.arange(size[0] * size[1]) * 7919 + 17).remainder(count).view(size)
    mask = (torch.arange(size[1]) < torch.tensor(lengths)[:, None]).long()
    padding = getattr(model.config, "pad_token_id", None) or 0
    ids = torch.where(mask.bool(), ids, padding).to(model.device)
    arguments = {"input_ids": ids, "attention_mask": mask.to(model.device)}
    if network.family.calls.memory:
        arguments["token_type_ids"] = (ids > padding).long()
    states = {"output_hidden_states": True, "return_dict": True}
    with evaluating(model), torch.autocast(model.device.type, enabled=False):
        try:
            expected = original(model, **arguments, **states)
            plain = original(model, **arguments, return_dict=False)
        except Exception as error:
            raise NotSupported(f"its own forward pass fails: {error}") from None
        network.output, network.keeps_none = type(expected), any(x is None for x in plain)
        network.normed = torch.equal(expected.hidden_states[-1], expected.last_hidden_state)
        try:
            actual, short = (
                compute(network, model, {**arguments, **options}, skips_padding=False)
                for options in (states, {"return_dict": False})
            )
        except (InputError, TypeError) as error:
            raise NotSupported(f"the packed network fails: {error}") from None
    if [*actual.keys()] != [*expected.keys()] or len(short) != len(plain):
        raise NotSupported("its results have another form")
    for name, value in expected.items():
        for ours, theirs in zip(_tensors(actual[name]), _tensors(value), strict=True):
            alike = ours.shape == theirs.shape and ours.dtype == theirs.dtype
            limit = _TOLERANCE[theirs.dtype] * theirs.abs().max()
            if not alike or not bool((ours - theirs).abs().max() <= limit):
                raise NotSupported(f"{name} differs")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for part in value:
            yield from _tensors(part)


@contextmanager
def unread_padding(positions: Tensor | None = None) -> Iterator[None]:
    """A context in which the caller's result does not depend on the values at padding, but on the
    hidden states at ``positions`` (M), which encoders return as one sequence, or on all."""
    unread, wanted = padding_is_unread.set(True), wanted_positions.set(positions)
    try:
        yield
    finally:
        padding_is_unread.reset(unread)
        wanted_positions.reset(wanted)


def _wanted(result: Any) -> Any:
    """The output of an encoder with the hidden states at ``wanted_positions`` alone."""
    positions = wanted_positions.get()
    if positions is None:
        return result
    rows = result[0].flatten(0, 1).index_select(0, positions)[None]
    if isinstance(result, tuple):
        return (rows, *result[1:])
    result.last_hidden_state = rows
    return result
