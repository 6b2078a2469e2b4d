"""Linear layers of PEFT with LoRA adapters as one matrix.

Source: Hu et al. 2021, section 4.1: W + (alpha / r) B A.
"""

from collections.abc import Hashable, Iterator
from typing import Any

from torch import nn


class NotSupported(Exception):
    """The reason why a model or a call is left to Transformers."""


def has_adapters(module: nn.Module) -> bool:
    """Whether a module is a linear layer with LoRA adapters."""
    kind = type(module)
    return kind.__name__ == "Linear" and kind.__module__ == "peft.tuners.lora.layer"


def without_adapters(module: nn.Module) -> nn.Module:
    """The layer that a module was before adapters were added."""
    return module.base_layer if has_adapters(module) else module  # pyright: ignore


def parameter(module: nn.Module, name: str) -> Any:
    """The weight or bias of a layer, with its active adapters; None if it has none."""
    if not has_adapters(module):
        return module._parameters.get(name)
    value = without_adapters(module)._parameters.get(name)
    if name != "weight" or value is None:
        return value
    layer: Any = module
    for adapter in _active(layer):
        value = value + layer.get_delta_weight(adapter)
    return value


def parts(module: nn.Module, name: str) -> Iterator[Any]:
    """The parameters that ``parameter`` is computed from."""
    yield without_adapters(module)._parameters.get(name)
    if has_adapters(module) and name == "weight":
        layer: Any = module
        for adapter in _active(layer):
            yield layer.lora_A[adapter].weight
            yield layer.lora_B[adapter].weight


def state(module: nn.Module) -> Hashable:
    """What ``parameter`` depends on besides parameters."""
    layer: Any = module
    return tuple((adapter, layer.scaling[adapter]) for adapter in _active(layer))


def _active(layer: Any) -> list[str]:
    """The adapters that are added to the weight of a layer.

    Raises:
        NotSupported: an adapter cannot be merged.
    """
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
