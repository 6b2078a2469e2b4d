"""Parts of a fused parameter as separate parameters: queries, keys and values, which are one
matrix here and three in Transformers.

Scripts freeze parameters and group them for an optimiser by name. A part shares the values and the
gradient of its rows of the whole without a copy, so training the parts trains the whole.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ownbert.config.encoder import EncoderConfig
from ownbert.families.mapping.weight_map import (
    Rename,
    Renamed,
    WeightMap,
    head_of,
    their_names,
    written_out,
)
from ownbert.nn.model import Model

View = Callable[[Tensor], Tensor]
_FUSED = WeakTensorKeyDictionary()  # the ``Fused`` of each whole parameter


class Fused:
    """A whole parameter, used by the model, and its parts, which ``views`` take from a tensor.

    Attributes:
        empty: indices of the parts whose gradient was set to None since the last backward pass.
    """

    def __init__(self, whole: nn.Parameter, views: Sequence[View]) -> None:
        self._whole, self.views = weakref.ref(whole), views
        self.empty: set[int] = set()
        self.parts = [ParameterView(self, number, whole) for number in range(len(views))]
        if whole.is_floating_point():  # quantized matrices have no gradient
            self._follow_gradients(whole)

    def _follow_gradients(self, whole: nn.Parameter) -> None:
        """Register a hook after the backward pass, even if the parameter is frozen for now."""
        trains, flag = whole.requires_grad, torch.Tensor.requires_grad
        whole.requires_grad = True
        whole.register_post_accumulate_grad_hook(lambda _: self.empty.clear())
        for part in self.parts:
            flag.__set__(part, True)  # pyright: ignore
            # Gradients of expressions on a single part, such as a penalty, count as well.
            part.register_post_accumulate_grad_hook(ParameterView._pass_on)
            flag.__set__(part, trains)  # pyright: ignore
        whole.requires_grad = trains

    @property
    def whole(self) -> nn.Parameter:
        whole = self._whole()
        if whole is None:
            raise ReferenceError("the model of this parameter no longer exists")
        return whole


class ParameterView(nn.Parameter):
    """A part of a whole parameter; shares its values, gradient and ``requires_grad``."""

    fused: Fused
    number: int

    def __new__(cls, fused: Fused, number: int, whole: nn.Parameter) -> "ParameterView":
        values = fused.views[number](whole.detach())
        part = torch.Tensor._make_subclass(cls, values, whole.requires_grad)
        part.fused, part.number = fused, number
        return part

    def __init__(self, *_: Any) -> None: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return memo.setdefault(id(self), nn.Parameter(self.detach().clone(), self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.detach().clone(), self.requires_grad).__reduce_ex__(protocol)

    def place(self, tensor: Tensor) -> Tensor:
        """This part of a tensor with the whole's shape."""
        return self.fused.views[self.number](tensor)

    def follow(self) -> None:
        """Refer to the whole's current values, after a change of device or dtype."""
        values = self.place(self.fused.whole.detach())
        try:
            moved = values.data_ptr() != self.data_ptr()
        except RuntimeError:  # torch.export reads the parameters, and gives no addresses
            return
        if moved or values.dtype != self.dtype:
            torch.Tensor.data.__set__(self, values)  # pyright: ignore

    def _pass_on(self) -> None:
        gradient = torch.Tensor.grad.__get__(self)  # pyright: ignore
        torch.Tensor.grad.__set__(self, None)  # pyright: ignore
        so_far = self.grad
        self.grad = gradient if so_far is None else so_far + gradient  # pyright: ignore

    @property
    def grad(self) -> Tensor | None:  # pyright: ignore
        self.follow()
        whole = self.fused.whole.grad
        if whole is None or not self.requires_grad or self.number in self.fused.empty:
            return None
        return self.place(whole)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        fused, whole = self.fused, self.fused.whole
        if value is None:
            fused.empty.add(self.number)
            if len(fused.empty) == len(fused.parts):
                whole.grad = None
                fused.empty.clear()
            elif whole.grad is not None:
                self.place(whole.grad).zero_()
            return
        if whole.grad is None:
            whole.grad = torch.zeros_like(whole)
            fused.empty = set(range(len(fused.parts)))
        self.place(whole.grad).copy_(value)
        fused.empty.discard(self.number)

    @property
    def data(self) -> Tensor:  # pyright: ignore
        self.follow()
        return torch.Tensor.data.__get__(self)  # pyright: ignore

    @data.setter
    def data(self, value: Tensor) -> None:
        self.place(self.fused.whole.data).copy_(value)

    @property
    def requires_grad(self) -> bool:  # pyright: ignore
        flag = torch.Tensor.requires_grad.__get__(self)  # pyright: ignore
        return bool(flag and self.fused.whole.requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        flag = torch.Tensor.requires_grad
        flag.__set__(self, value)  # pyright: ignore
        self.fused.whole.requires_grad = any(flag.__get__(part) for part in self.fused.parts)  # pyright: ignore

    def requires_grad_(self, requires_grad: bool = True) -> "ParameterView":  # pyright: ignore
        self.requires_grad = requires_grad
        return self


def their_parameters(model: Model, weight_map: WeightMap) -> dict[str, list[tuple[str, Any]]]:
    """For each of our parameters: Transformers' names, with the parameter or its parts."""
    ours, parameters = dict(model.named_parameters()), {}
    for rule in written_out(weight_map.rules, model.config):
        if not isinstance(rule, Renamed) or rule.ours not in ours:
            continue
        if head_of(rule) not in (None, *model.specs) or rule.ours in parameters:
            continue  # only the first of several names is written
        whole, names = ours[rule.ours], their_names(rule)
        if isinstance(rule, Rename):
            parameters[rule.ours] = [(rule.theirs, whole)]
        else:
            views = [partial(_part, rule, model.config, number) for number in range(len(names))]
            parts = parts_of(whole, views)
            parameters[rule.ours] = list(zip(names, parts, strict=True))
    left = ours.keys() - parameters.keys()
    inside = weight_map.names_inside(left, model.config, model.specs)
    return parameters | {our: [(their, ours[our])] for our, their in inside.items()}


def parts_of(whole: nn.Parameter, views: Sequence[View]) -> list[ParameterView]:
    """The parts of a parameter, always the same objects."""
    if whole not in _FUSED:
        _FUSED[whole] = Fused(whole, views)
    parts = _FUSED[whole].parts
    for part in parts:
        part.follow()
    return parts


def follow(parameters: Sequence[nn.Parameter]) -> None:
    """Update parts after their parameters were moved."""
    for whole in parameters:
        if whole in _FUSED:
            parts_of(whole, ())


def _part(rule: Renamed, config: EncoderConfig, number: int, tensor: Tensor) -> Tensor:
    return rule.to_theirs(tensor, config)[number]


def children_by_name(parameters: Mapping[str, nn.Parameter], modules: Mapping[str, nn.Module]):
    """Modules with parameters by name: ours, or parameter dicts for parts without a module."""
    children: dict[str, nn.Module] = {}
    for name, parameter in parameters.items():
        path, _, leaf = name.rpartition(".")
        if path and path in modules:
            children[path] = modules[path]
        elif path:
            children.setdefault(path, nn.ParameterDict())[leaf] = parameter  # pyright: ignore
    return children.items()


def listed_modules(
    model: Model, weight_map: WeightMap, own_name: Callable[[str], str]
) -> dict[nn.Module, dict[str, nn.Module]]:
    """For each of our modules whose parameters are others in Transformers, or in other modules:
    these modules by name, with its parameters and the parts of fused ones."""
    named = their_parameters(model, weight_map)
    found: dict[nn.Module, dict[str, nn.Module]] = {}
    for path, module in model.named_modules():
        theirs: list[tuple[str, str, Any]] = []
        same = True
        for leaf, parameter in module._parameters.items():
            ours = f"{path}.{leaf}".lstrip(".")
            for their, part in named.get(ours, [(f"model.{ours}", parameter)]):
                where, _, last = own_name(their).rpartition(".")
                theirs.append((where, last, part))
                same = same and last == leaf and part is parameter
        if not same:
            children = found[module] = {}
            for where, last, part in theirs:
                wholes = {} if children else module._parameters
                # Not assigned as an attribute, which checks a lot.
                children.setdefault(where, ListedModule(wholes))._parameters[last] = part
    return found


class ListedModule(nn.Module):
    """A module whose parameters are listed by a module around the model.

    Its own ``named_parameters`` are whole ones: they are in the graph, so
    ``DistributedDataParallel``, which asks every module, reduces their gradients.
    """

    wholes: Mapping[str, nn.Parameter | None]

    def __init__(self, wholes: Mapping[str, nn.Parameter | None]) -> None:
        super().__init__()
        self.wholes = wholes

    def named_parameters(self, prefix: str = "", *_: Any, **__: Any) -> Any:
        start = prefix and prefix + "."
        return ((start + n, p) for n, p in self.wholes.items() if p is not None)


def parameters_of(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of named modules by their full names, each only once."""
    seen: set[nn.Parameter] = set()
    for place, module in modules:
        for leaf, parameter in module._parameters.items():
            if parameter is not None and parameter not in seen:
                seen.add(parameter)
                yield f"{place}.{leaf}".lstrip("."), parameter
