"""Transformers' module names for a packed model, for scripts that access its parts.

``model.bert.encoder.layer[3].output.dense`` is the module with these weights, if there is one, and
``...attention.self.key.weight`` a view of its rows in a fused matrix.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ownbert.exceptions import InputError
from ownbert.families.mapping.weight_map import (
    Rename,
    Reshape,
    Tie,
    WeightMap,
    head_of,
    written_out,
)
from ownbert.hf.weights.parameter_parts import their_parameters
from ownbert.nn.model import Model

_WORDS = "encoder.embeddings.word.weight"


def second_names(model: Model) -> tuple[str, ...]:
    """The other names of the word embeddings, if an output layer shares them."""
    if model.share_embeddings:
        generator = model.specs.get("generator")
        tied = generator is not None and generator.tied
        head = ("heads.generator.projection.weight",) if tied else ()
        return ("decoder.embeddings.word.weight", *head)
    return ("heads.mlm.decoder.weight",) if "mlm" in model.specs else ()


def with_second_names(model: Model, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors, with the word embeddings also under their other names."""
    if _WORDS not in ours:
        return dict(ours)
    return {**ours, **dict.fromkeys(second_names(model), ours[_WORDS])}


def their_tensors(
    model: Model, weight_map: WeightMap, ours: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Our tensors by Transformers' names, including second names of tied ones."""
    further = second_names(model)
    once = {name: tensor for name, tensor in ours.items() if name not in further}
    theirs = weight_map.to_theirs(once, model.config, bare=False)
    for rule in written_out(weight_map.rules, model.config):
        if isinstance(rule, Tie) and rule.to in theirs and (further or rule.always):
            theirs[rule.theirs] = theirs[rule.to]
    return theirs


def their_parameter_names(
    model: Model, weight_map: WeightMap, *, reshaped: bool = True
) -> dict[str, str]:
    """Transformers' names of our parameters that are not fused; with ``reshaped`` also of those
    with another shape in Transformers."""
    names = {}
    for rule in written_out(weight_map.rules, model.config):
        if head_of(rule) not in (None, *model.specs):
            continue
        if isinstance(rule, Rename) or (reshaped and isinstance(rule, Reshape)):
            names[rule.ours] = rule.theirs
    return names


def their_module_names(model: Model, weight_map: WeightMap) -> dict[str, str]:
    """Transformers' names of our modules that have weights, and of those inside."""
    names = their_parameter_names(model, weight_map)
    modules = {name for name, _ in model.named_modules()}
    split = ((our.rpartition("."), their.rpartition(".")) for our, their in names.items())
    named = {our[0]: their[0] for our, their in split if our[0] in modules and our[2] == their[2]}
    return named | weight_map.names_inside(modules, model.config, model.specs)


class NamedView:
    """A node in Transformers' tree of names (``encoder``, ``layer``, ``0``, ...) without a
    module."""

    def __init__(self, model: Model, weight_map: WeightMap, prefix: str) -> None:
        self._model, self._weight_map, self._prefix = model, weight_map, prefix

    def _tensors(self) -> dict[str, Tensor]:
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        theirs = their_tensors(self._model, self._weight_map, parameters)
        start = self._prefix + "."
        return {n.removeprefix(start): t for n, t in theirs.items() if n.startswith(start)}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(nn.Module, name):
            raise AttributeError(
                f"{self._prefix} is only a name here, not a module, so it has no {name}; see the "
                "modules in .model"
            )
        return find(self._model, self._weight_map, self._path(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif not replace_module(self._model, self._weight_map, self._path(name), value):
            raise InputError(f"{self._path(name)} cannot be replaced here; single layers can")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise InputError(f"{self._prefix} cannot be called alone; call the model")

    def _path(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[index]
        return Layers(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, str(number)) for number in range(len(self)))

    def __len__(self) -> int:
        return len({n.split(".")[0] for n in self._tensors() if n.split(".")[0].isdecimal()})

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Our parameters below this node, by Transformers' names."""
        for named in their_parameters(self._model, self._weight_map).values():
            for their, parameter in named:
                if their.startswith(self._prefix + "."):
                    yield their.removeprefix(self._prefix + "."), parameter

    def modules(self) -> Iterator[nn.Module]:
        """Our modules below this node."""
        for our, their in their_module_names(self._model, self._weight_map).items():
            if f"{their}.".startswith(self._prefix + "."):
                yield self._model.get_submodule(our)

    def parameters(self) -> Iterator[Tensor]:
        return (parameter for _, parameter in self.named_parameters())

    def requires_grad_(self, requires_grad: bool = True) -> "NamedView":
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self._tensors().items()}

    def __repr__(self) -> str:
        return "\n".join(f"{n} {tuple(t.shape)}" for n, t in self._tensors().items())


class Layers(list[Any]):
    """Some layers of a stack, ``layer[:8]``."""

    def parameters(self) -> Iterator[Tensor]:
        return (parameter for layer in self for parameter in layer.parameters())

    def requires_grad_(self, requires_grad: bool = True) -> "Layers":
        for layer in self:
            layer.requires_grad_(requires_grad)
        return self


def _our_module(model: Model, weight_map: WeightMap, name: str) -> str:
    """Our name of the module with this name in Transformers; empty if there is none."""
    names = their_parameter_names(model, weight_map, reshaped=False)
    ours = {their: our for our, their in names.items()}
    return ours.get(f"{name}.weight", "").removesuffix(".weight")


def find(model: Model, weight_map: WeightMap, name: str) -> Any:
    """The module, node or tensor with a name in Transformers; ``AttributeError`` if missing."""
    if module := _our_module(model, weight_map, name):
        return model.get_submodule(module)
    for rule in written_out(weight_map.rules, model.config):
        if isinstance(rule, Tie) and rule.theirs == f"{name}.weight":
            if rule.always:
                return find(model, weight_map, rule.to.removesuffix(".weight"))
            if second_names(model):
                return model.get_submodule(second_names(model)[-1].rsplit(".", 1)[0])
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tensors = their_tensors(model, weight_map, parameters)
    if name in tensors:
        return tensors[name]
    if any(other.startswith(name + ".") for other in tensors):
        return NamedView(model, weight_map, name)
    raise AttributeError(f"the model has no {name!r}")


def has_tensors(model: Model, weight_map: WeightMap, name: str) -> bool:
    """Whether a module with this name in Transformers contains tensors of ours."""
    theirs = their_tensors(model, weight_map, dict(model.named_parameters()))
    return any(each.startswith(f"{name}.") for each in theirs)


def replace_module(model: Model, weight_map: WeightMap, name: str, value: Any) -> bool:
    """Replace our module with this name in Transformers; return whether there is one."""
    if value is None and name == weight_map.prefix + "pooler":
        model.pooler = None
        return True
    if not isinstance(value, nn.Module):
        return False
    module = _our_module(model, weight_map, name)
    if not module:
        return False
    parent, _, leaf = module.rpartition(".")
    setattr(model.get_submodule(parent), leaf, value)
    model.tie()
    return True
