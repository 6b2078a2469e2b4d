"""An encoder of Transformers as a packed network that computes with the encoder's own parameters.

T tokens, B sequences, S longest sequence, D hidden.
"""

import copy
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.families import FAMILIES
from ownbert.families.mapping.weight_map import (
    Fuse,
    Heads,
    Renamed,
    Reshape,
    head_of,
    their_names,
    written_out,
)
from ownbert.language.messages import Message
from ownbert.nn.context import Context
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model, Outputs
from ownbert.nn.prepack import PRECISIONS, prepack
from ownbert.nn.undrawn import Undrawn, shapes_alone

# Classes of Transformers without a head, by name: the encoders that are sped up.
ENCODERS = {
    name: family
    for family in FAMILIES.values()
    for name, spec in family.architectures.items()
    if not spec.heads and not spec.decoder
}
# Values of each parameter that are compared before its packed copy is used.
_SAMPLES = 64
_FORWARD_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
# Values of attributes that describe a layer.
_SIMPLE = (int, float, str, type(None), torch.dtype, FunctionType)
_NO_FACTS = frozenset((*nn.Module().__dict__, "forward", "gradient_checkpointing", "layer_idx"))


class NotSupported(Exception):
    """The reason why a model or a call is left to Transformers."""


@dataclass(frozen=True)
class Source:
    """The parameters of the encoder that a parameter of the packed network is made of: the module
    with the latter and its name there, and the modules, names and shapes of the former."""

    place: tuple[nn.Module, str]
    rule: Renamed
    owners: tuple[tuple[nn.Module, str], ...]
    shapes: tuple[torch.Size, ...]

    def value(self, config: EncoderConfig) -> Tensor:
        """The parameter, differentiable with respect to those of the encoder."""
        parts: list[Any] = [_parameter(owner, leaf) for owner, leaf in self.owners]
        for part, shape in zip(parts, self.shapes, strict=True):
            if part is None or part.shape != shape:
                raise NotSupported("the shape of a parameter has changed")
        if isinstance(self.rule, Fuse):
            return torch.cat(parts)
        if isinstance(self.rule, Heads):
            return self.rule.to_ours(parts)
        return self.rule.to_ours(parts[0], config) if isinstance(self.rule, Reshape) else parts[0]


class EncoderNetwork:
    """The packed network of an encoder of Transformers; ``NotSupported`` if the encoder is not what
    its class and config describe, or the family's engine does not support them.

    Attributes:
        output: the class of Transformers' results.
        keeps_none: whether a tuple of them contains None for a missing pooler.
        normed: whether the last of the hidden states is after the final norm.
    """

    output: Any
    keeps_none: bool
    normed: bool

    @in_float32  # not the default dtype of a later call
    def __init__(self, model: Any) -> None:
        names = (
            k.__name__ for k in type(model).__mro__ if k.__module__.startswith("transformers.")
        )
        self.family = next(ENCODERS[name] for name in names if name in ENCODERS)
        require_encoder(model.config)
        try:
            self.config = self.family.read_config(model.config.to_dict())
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise NotSupported(f"its config is not supported: {error}") from None
        self.has_pooler = getattr(model, "pooler", None) is not None
        self.drops = _require_same_layers(model, _reference(model))
        with shapes_alone():
            self.net = Model(
                self.config, (), pooler=self.has_pooler, model_type=self.family.model_type
            )
        for module in self.net.modules():
            if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
                module.fill_buffers()  # pyright: ignore[reportCallIssue]
        self.sources = self._sources(model)
        self._nothing = [layer._parameters[leaf] for layer, leaf in self._places()]
        self._lock = threading.Lock()  # of the parameters of the network
        self._adapted: list[Any] = [
            layer for layer in _layers(model).values() if _has_adapters(layer)
        ]
        self._known: Known | None = None

    def _sources(self, model: Any) -> list[Source]:
        weight_map, owners, shapes = self.family.weight_map, {}, {}
        tied: list[Tensor] = []
        for place, layer in _layers(model).items():
            for leaf, parameter in _without_adapters(layer)._parameters.items():
                full = weight_map.full_name(f"{place}.{leaf}".lstrip("."))
                if parameter is not None and not any(parameter is p for p in tied):
                    owners[full] = layer, leaf
                    shapes[full] = torch.empty_like(parameter, device="meta")
                    tied.append(parameter)
        try:
            ours, problems = weight_map.to_ours(shapes, self.config, ())
        except NotImplementedError:  # values without memory cannot be compared
            raise NotSupported("parameters that are tied in its class are not") from None
        wanted = {name: p.shape for name, p in self.net.named_parameters()}
        if problems or {name: tensor.shape for name, tensor in ours.items()} != wanted:
            raise NotSupported("its parameters differ from those of its class")
        sources, networks = [], dict(self.net.named_modules())
        for rule in written_out(weight_map.rules, self.config):
            if not isinstance(rule, Renamed) or head_of(rule) is not None:
                continue
            names = their_names(rule)
            if rule.ours not in wanted or not owners.keys() >= {*names}:
                continue
            of = tuple(owners[name] for name in names)
            inside, _, leaf = rule.ours.rpartition(".")
            layer = networks[inside]
            shape = tuple(shapes[name].shape for name in names)
            sources.append(Source((layer, leaf), rule, of, shape))
            if isinstance(layer, nn.Embedding):
                layer.padding_idx = getattr(of[0][0], "padding_idx", None)
        return sources

    def _places(self) -> Iterator[tuple[nn.Module, str]]:
        return (source.place for source in self.sources)

    def parameters(self) -> Iterator[Any]:
        """The parameters of the encoder that the network computes with."""
        for source in self.sources:
            for owner, leaf in source.owners:
                yield from _parameter_parts(owner, leaf)

    def run(self, batch: Batch, context: Context, *, training: bool, keep_hidden: bool) -> Outputs:
        """Compute the network with the current parameters of the encoder."""
        plain = not (training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
        packed = self._packed_copy() if plain else None
        if packed is not None:
            return packed(batch, (), context=context, keep_hidden=keep_hidden)
        weights = [source.value(self.config) for source in self.sources]
        with self._lock:
            self.net.train(training and self.drops)
            try:
                # Like torch.func.functional_call, which takes longer than a short text.
                for (layer, leaf), weight in zip(self._places(), weights, strict=True):
                    layer._parameters[leaf] = weight  # pyright: ignore[reportArgumentType]
                return self.net(batch, (), context=context, keep_hidden=keep_hidden)
            finally:
                for (layer, leaf), nothing in zip(self._places(), self._nothing, strict=True):
                    layer._parameters[leaf] = nothing

    def _packed_copy(self) -> Model | None:
        """A copy with packed matrices, made when the same parameters are used a second time."""
        parameters = list(self.parameters())
        first = parameters[0]
        if first.device.type != "cpu" or any(p.is_inference() for p in parameters):
            return None
        versions: list[Any] = [(p.data_ptr(), p._version) for p in parameters]
        versions += [
            tuple((a, layer.scaling[a]) for a in _active_adapters(layer)) for layer in self._adapted
        ]
        known = self._known
        if known is None or versions != known.versions or not known.is_current():
            self._known = Known(versions, parameters)
            return None
        if known.packed is None:
            with self._lock, torch.no_grad():
                known.packed = known.packed or self._pack(first.dtype)
        return known.packed

    def _pack(self, dtype: torch.dtype) -> Model:
        memo: dict[int, Any] = {}
        for source, nothing in zip(self.sources, self._nothing, strict=True):
            value = source.value(self.config).detach()
            memo[id(nothing)] = nn.Parameter(value, requires_grad=False)
        names = {dtype: name for name, dtype in PRECISIONS.items()}
        return prepack(copy.deepcopy(self.net, memo), names[dtype])


class Known:
    """Parameters that were used without gradients: address and version of each, and the state of
    adapters; and the network with copies of them, if they were used again.

    A change by ``.data`` has no version: it is noticed in some values of each parameter.
    """

    def __init__(self, versions: list[Any], parameters: list[Tensor]) -> None:
        self.versions, self.packed = versions, None
        flat = [p.detach().flatten() for p in parameters]
        self._views = [values[:: max(1, len(values) // _SAMPLES)] for values in flat]
        self._sample = torch.cat(self._views)

    packed: Model | None

    def is_current(self) -> bool:
        return torch.equal(torch.cat(self._views), self._sample)


class Facts:
    """The layers of a model, their attributes and forward passes, to notice changes."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = tuple(model.modules())
        self._values: list[tuple[dict[str, Any], str, Any]] = []
        for module in self.modules:
            self._values += [(module._modules, *item) for item in module._modules.items()]
            if module is not model:
                self._values += [(module.__dict__, *item) for item in _attributes(module).items()]
        self._counts = [(module._modules, len(module._modules)) for module in self.modules]
        self._forwards = [(kind, kind.forward) for kind in {*map(type, self.modules)}]

    def hold(self) -> bool:
        """Whether nothing has changed."""
        return (
            all(kept.get(name) is x or kept.get(name) == x for kept, name, x in self._values)
            and all(len(modules) == count for modules, count in self._counts)
            and all(kind.forward is forward for kind, forward in self._forwards)
        )


def _attributes(module: nn.Module) -> dict[str, Any]:
    if hasattr(module, "post_init"):  # a model, whose attributes are not those of a layer
        return {}
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in _NO_FACTS and not name.startswith("_") and isinstance(value, _SIMPLE)
    }


def require_encoder(config: Any) -> None:
    """Check that a config of Transformers is that of an encoder with plain attention."""
    if getattr(config, "is_decoder", False):
        raise NotSupported("it is a decoder")
    implementation = getattr(config, "_attn_implementation", "eager")
    if implementation not in ("eager", "sdpa"):
        raise NotSupported(f"its attention is {implementation}")


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules by name, without those inside adapters."""
    layers, inside = {}, []
    for name, module in model.named_modules():
        if not name.startswith(tuple(inside)):
            layers[name] = module
            inside += [name + "."] if _has_adapters(module) else []
    return layers


def _reference(model: Any) -> nn.Module:
    """A new model of the same class and config, without values."""
    kind = next(k for k in type(model).__mro__ if k.__module__.startswith("transformers."))
    options = {}
    if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
        options["add_pooling_layer"] = getattr(model, "pooler", None) is not None
    # Pruning heads needs values.
    empty = Undrawn() if getattr(model.config, "pruned_heads", None) else shapes_alone()
    try:
        with torch.random.fork_rng(devices=[]), empty:
            return kind(copy.deepcopy(model.config), **options)
    except Exception as error:  # a config that its class does not accept any more
        raise NotSupported(f"its config describes no model: {error}") from None


def _require_same_layers(model: nn.Module, reference: nn.Module) -> bool:
    """Check that a model has the layers of a new one.

    Returns:
        Whether it has the dropout rates of its config; otherwise all are 0.
    """
    layers, expected = _layers(model), dict(reference.named_modules())
    for name in sorted(layers.keys() ^ expected.keys()):
        raise NotSupported(
            Message("{name} is {text}", name, "new" if name in layers else "missing")
        )
    rates, changed = [], ""
    for name, module in layers.items():
        if not name:
            continue
        module, other = _without_adapters(module), expected[name]
        if type(module) is not type(other):
            raise NotSupported(f"{name} is a {type(module).__name__}")
        mine, default = _attributes(module), _attributes(other)
        for key in sorted(mine.keys() | default.keys()):
            is_rate = "drop" in key or (key == "p" and isinstance(module, nn.Dropout))
            is_rate = is_rate and isinstance(mine.get(key), int | float)
            rates += [mine[key]] if is_rate else []
            if mine.get(key) != default.get(key):
                changed = f"{name}.{key} is {mine.get(key)}, not {default.get(key)}"
                if not is_rate:
                    raise NotSupported(changed)
    if changed and any(rates):
        raise NotSupported(changed)
    return not changed


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in which all layers are in evaluation mode, and after which they are as before:
    Transformers 5 leaves hooks that cannot be pickled."""
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    hooks = [
        (kept, dict(kept))
        for _, values in before
        for kept in map(values.__getitem__, _FORWARD_HOOKS)
    ]
    try:
        for module, _ in before:
            module.training = False
        yield
    finally:
        for module, values in before:
            module.training = values["training"]
            for name in module.__dict__.keys() - values.keys():
                del module.__dict__[name]
        for kept, values in hooks:
            kept.clear()
            kept.update(values)


# Linear layers of PEFT with LoRA adapters as one matrix: W + (alpha / r) B A (Hu et al. 2021,
# section 4.1).


def _has_adapters(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Linear" and kind.__module__ == "peft.tuners.lora.layer"


def _without_adapters(module: nn.Module) -> nn.Module:
    return module.base_layer if _has_adapters(module) else module  # pyright: ignore


def _parameter(module: Any, name: str) -> Any:
    """The weight or bias of a layer, with its active adapters; None if it has none."""
    value = _without_adapters(module)._parameters.get(name)
    if name == "weight" and value is not None and _has_adapters(module):
        for adapter in _active_adapters(module):
            value = value + module.get_delta_weight(adapter)
    return value


def _parameter_parts(module: Any, name: str) -> Iterator[Any]:
    """The parameters that ``_parameter`` is computed from."""
    yield _without_adapters(module)._parameters.get(name)
    if _has_adapters(module) and name == "weight":
        for adapter in _active_adapters(module):
            yield module.lora_A[adapter].weight
            yield module.lora_B[adapter].weight


def _active_adapters(layer: Any) -> list[str]:
    """The adapters that are added to the weight of a layer, if they can be merged."""
    if layer.disable_adapters or layer.merged:
        if layer.disable_adapters and layer.merged:
            raise NotSupported("merged adapters are disabled")
        return []
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    for name in names:
        dropout = layer.lora_dropout[name]
        if dropout.training and getattr(dropout, "p", 0.0):
            raise NotSupported("dropout of adapters in training")
        if name in layer.lora_variant or layer.lora_bias.get(name) or layer.fan_in_fan_out:
            raise NotSupported("adapters that are not plain LoRA")
    return names
