"""``speed_up``: models made by Transformers that compute with OwnBERT's packed network."""

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.families import FAMILIES
from ownbert.nn.cross_entropy import cross_entropy
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.layers import linear
from ownbert.transformers.encoder_call import (
    FastEncoder,
    named,
    require_plain_run,
    unread_padding,
)
from ownbert.transformers.encoder_network import ENCODERS, NotSupported

AnyModel = TypeVar("AnyModel")

# Heads by class name, of the classes whose results do not depend on the values at padding.
_WITH_HEADS: dict[str, tuple[HeadSpec, ...]] = {
    name: spec.heads
    for family in FAMILIES.values()
    for name, spec in family.architectures.items()
    if spec.heads and not spec.decoder and family.model_type != "xlnet"
}
_OF_SEQUENCES = {"nsp", "sop", "classification", "choice"}
_OF_TOKENS = {"mlm", "tokens", "discriminator"}
# Modules of sentence-transformers that do not read the values at padding.
_MASKED_POOLING = {"Transformer", "Pooling", "Normalize", "Dense", "Dropout"}
# Layers that treat each row by itself; a head may have been replaced by an LSTM.
_ROW_BY_ROW = (nn.Linear, nn.Dropout, nn.LayerNorm, nn.Identity, nn.Tanh, nn.GELU, nn.ReLU)
_ROW_BY_ROW += (nn.Sequential, nn.ModuleList, nn.CrossEntropyLoss)
_OF_ROWS = ("transformers.", "peft.")
_NO_LABEL = -100

# By encoder. Not an attribute, which would be saved and copied with the model.
_encoders: "WeakKeyDictionary[nn.Module, FastEncoder]" = WeakKeyDictionary()


@in_float32
def speed_up(
    model: AnyModel,
    *,
    undo: bool = False,
    explain: bool = False,
    skip_padding: bool | None = None,
    loss_only: bool = False,
) -> AnyModel:
    """Make a model of Transformers, or everything that contains one, faster in place.

    The encoders in the model compute with OwnBERT's packed network and their own parameters: the
    results are equal up to rounding, and so are the gradients. The model stays an object of
    Transformers. What the packed network does not support (a decoder, attention weights, hooks
    inside, replaced layers) is computed by Transformers as before; the reason is logged once
    (logger ``ownbert.speed_up``).

    Args:
        model: a model of Transformers, ``SentenceTransformer``, ``CrossEncoder``, pipeline, or any
            ``nn.Module`` that contains an encoder of Transformers.
        undo: restore Transformers' forward passes.
        explain: print for each encoder what it computed and what was left to Transformers.
        skip_padding: whether hidden states at padding may be zero, which is faster. By default they
            are, if the heads are those of Transformers or sentence-transformers that do not read
            them.
        loss_only: whether a model with an MLM head returns the loss without logits (None) in
            training, if there are labels. It then computes logits at labelled positions only.

    Returns:
        The model.

    Raises:
        InputError: there is no encoder in it.
    """
    root = _module(model)
    encoders = list(_encoders_in(root))
    if not encoders:
        raise InputError(
            "there is no encoder in a {kind}; speed_up supports {names}",
            *(type(model).__name__, list(ENCODERS)),
        )
    if explain:
        for encoder in encoders:
            print(_explanation(encoder))
        return model
    if undo:
        for module in root.modules():
            _restore(module)
        return model
    pooled = {part for each in root.modules() if _pools_by_mask(each) for part in each.modules()}
    for encoder in encoders:
        skips = encoder in pooled if skip_padding is None else skip_padding
        _replace_encoder(encoder, skips)
    for module in root.modules():
        if _heads(module) is not None:
            _replace(module, _loss_only if loss_only else _with_heads)
    return model


def _module(model: Any) -> nn.Module:
    """The module to speed up in a model, a pipeline or a SetFit model."""
    for name in ("", "model", "model_body"):
        found = getattr(model, name, None) if name else model
        if isinstance(found, nn.Module):
            return found
    message = "speed_up is for models of Transformers and what contains one, not for a {kind}"
    raise InputError(message, type(model).__name__)


def _encoders_in(root: nn.Module) -> Iterator[nn.Module]:
    for module in root.modules():
        if _transformers_class(module, ENCODERS) is not None:
            yield module


def _transformers_class(module: nn.Module, names: Any) -> str | None:
    """The class of Transformers whose forward pass a module has, if it is one of ``names``."""
    for kind in type(module).__mro__:
        if "forward" in kind.__dict__:
            inside = kind.__module__.startswith("transformers.")
            return kind.__name__ if inside and kind.__name__ in names else None
    return None


def _heads(module: nn.Module) -> tuple[HeadSpec, ...] | None:
    name = _transformers_class(module, _WITH_HEADS)
    return None if name is None else _WITH_HEADS[name]


def _pools_by_mask(module: nn.Module) -> bool:
    """Whether it is a SentenceTransformer of modules that do not read the values at padding."""
    kinds = [type(child) for child in module] if isinstance(module, nn.Sequential) else []
    return bool(kinds) and all(
        kind.__module__.startswith("sentence_transformers.") and kind.__name__ in _MASKED_POOLING
        for kind in kinds
    )


def _replace_encoder(model: nn.Module, skip_padding: bool) -> None:
    if "forward" in model.__dict__ and not _is_ours(model):
        return
    fast = _encoders[model] = FastEncoder(skip_padding)

    def run(model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(model, *args, **kwargs)
        fast = _encoders.get(model)
        if fast is None:  # of a copy of the model
            fast = _encoders[model] = FastEncoder(skip_padding)
        return fast(model, original, args, kwargs)

    _replace(model, run)
    fast.prepare(model, type(model).forward)


def _replace(model: Any, run: Callable[..., Any]) -> None:
    if "forward" in model.__dict__ and not _is_ours(model):
        return
    original = type(model).forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Not the original, which another library may have replaced in its class since.
        return run(self, type(self).forward, args, kwargs)

    forward.ownbert = True  # pyright: ignore[reportAttributeAccessIssue]
    # A bound method is copied with the model, and pickled as the forward pass of the class.
    model.forward = MethodType(forward, model)
    model._replicate_for_data_parallel = MethodType(_replica, model)


def _is_ours(model: nn.Module) -> bool:
    """Whether the forward pass in the attributes of a model is ours, or that of its class, which a
    pickled model has."""
    function = getattr(model.__dict__["forward"], "__func__", None)
    return getattr(function, "ownbert", False) or function is type(model).forward


def _replica(self: Any) -> Any:
    """A replica on another device, with Transformers' forward pass: ours is bound to ``self``."""
    replica = type(self)._replicate_for_data_parallel(self)
    for name in ("forward", "_replicate_for_data_parallel"):
        replica.__dict__.pop(name, None)
    return replica


_replica.__name__ = "_replicate_for_data_parallel"


def _restore(model: nn.Module) -> None:
    if "forward" in model.__dict__ and _is_ours(model):
        for name in ("forward", "_replicate_for_data_parallel"):
            model.__dict__.pop(name, None)
    _encoders.pop(model, None)


def _with_heads(model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The forward pass of a model with heads, with the values at padding only if they matter."""
    if torch.compiler.is_compiling() or not _skips_padding(model, original, args, kwargs):
        return original(model, *args, **kwargs)
    with unread_padding():
        return original(model, *args, **kwargs)


def _loss_only(model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The loss of a model with an MLM head in training: its own head and loss compute a sequence of
    the labelled positions alone."""
    if not model.training or torch.compiler.is_compiling():
        return _with_heads(model, original, args, kwargs)
    if not _skips_padding(model, original, args, kwargs):
        return original(model, *args, **kwargs)
    arguments = named(original, model, args, kwargs)
    labels, kinds = arguments.get("labels"), [spec.kind for spec in _heads(model) or ()]
    inputs = next(
        (arguments[name] for name in ("input_ids", "inputs_embeds") if name in arguments), None
    )
    fits = isinstance(labels, torch.Tensor) and isinstance(inputs, torch.Tensor)
    if kinds != ["mlm"] or not fits or labels.shape != inputs.shape[:2]:  # pyright: ignore
        return _with_heads(model, original, args, kwargs)
    positions = (labels.flatten() != _NO_LABEL).nonzero()[:, 0]  # pyright: ignore
    if not len(positions):
        return _with_heads(model, original, args, kwargs)
    arguments["labels"] = labels.flatten()[positions][None]  # pyright: ignore
    try:
        require_plain_run()
        head = _FastHead(len(positions))
    except NotSupported:
        head = nullcontext()
    with unread_padding(positions), head:
        out = original(model, **arguments)
    if isinstance(out, tuple):
        return out[:1]
    return type(out)(**{name: value for name, value in out.items() if name != "logits"})


class _FastHead(TorchFunctionMode):
    """A context in which a head computes its products and its loss as ``ownbert pretrain`` does,
    for ``count`` labelled positions: a step of a mini model takes a sixth less."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in (F.linear, F.cross_entropy) or types or len(args) < 2:
            return func(*args, **kwargs)
        x, other, *bias = args
        if x.device.type != "cpu":
            return func(*args, **kwargs)
        if func is F.linear and x.shape[:2] == (1, self.count) and not kwargs:
            return linear(x[0], other, *bias or [None])[None]
        wide = x.dtype == torch.float32 or torch.is_autocast_enabled("cpu")
        if func is F.cross_entropy and len(x) == self.count and wide and not bias:
            reduction = kwargs.get("reduction", "mean")
            changed = kwargs.get("weight") is not None or kwargs.get("label_smoothing")
            if not changed and reduction in ("mean", "sum"):
                total, _ = cross_entropy(x, other)
                return total if reduction == "sum" else total / self.count
        return func(*args, **kwargs)


def _skips_padding(model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether neither the loss nor the results, except logits at padding, depend on padding."""
    specs = _heads(model) or ()
    kinds = {spec.kind for spec in specs}
    if not kinds or not kinds <= _OF_SEQUENCES | _OF_TOKENS:
        return False
    if not original.__module__.startswith("transformers."):  # replaced in its class
        return False
    if not all(map(_reads_rows, model.children())):
        return False
    arguments = named(original, model, args, kwargs)
    for name in ("output_hidden_states", "output_attentions"):
        value = arguments.get(name)
        if getattr(model.config, name, False) if value is None else value:
            return False
    mask, labels = arguments.get("attention_mask"), arguments.get("labels")
    if mask is None or labels is None or not kinds & {"mlm", "tokens"}:
        return True
    if mask.shape != labels.shape:
        return False
    return not bool(((labels != _NO_LABEL) & (mask == 0)).any())


def _reads_rows(child: nn.Module) -> bool:
    """Whether a child of a model is the encoder, or treats each row by itself."""
    if _transformers_class(child, ENCODERS) is not None:
        return not child._forward_hooks
    return all(
        (type(module) in _ROW_BY_ROW or type(module).__module__.startswith(_OF_ROWS))
        and not module._forward_hooks
        and not module._forward_pre_hooks
        for module in child.modules()
    )


def _explanation(encoder: nn.Module) -> str:
    name, fast = type(encoder).__name__, _encoders.get(encoder)
    if fast is None:
        return f"{name}: not sped up"
    lines = [f"{name}: {fast.calls} calls by the packed network"]
    if fast.reason:
        lines.append(f"  not supported: {fast.reason}")
    lines += [f"  {count} calls by Transformers: {why}" for why, count in fast.reasons.items()]
    return "\n".join(lines)
