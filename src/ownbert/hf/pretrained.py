"""Models with the API of Transformers 4.57.6."""

import copy
import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.checkpoint.copying import require_blocks
from ownbert.checkpoint.description import CONFIG, describe_config
from ownbert.checkpoint.model_files import read_config
from ownbert.checkpoint.weights import read_weights
from ownbert.exceptions import InputError
from ownbert.families.mapping.calls import Calls
from ownbert.families.mapping.family import ArchitectureSpec, Family
from ownbert.families.mapping.weight_map import WeightMap
from ownbert.hf.common import CommonModel, LoadArguments, is_own, refuse
from ownbert.hf.configs import PretrainedConfig
from ownbert.hf.forward_pass.forward import forward as run
from ownbert.hf.weights import parameter_parts
from ownbert.hf.weights.names import find, has_tensors, replace_module, their_module_names
from ownbert.hf.weights.states import fill, to_ours, to_theirs, write
from ownbert.nn.model import Model
from ownbert.nn.output_heads import MaskedLMHead
from ownbert.nn.undrawn import Undrawn, shapes_alone

# Accepted by every forward pass, in addition to the arguments of its signature.
_COMMON_ARGUMENTS = {
    *("past_key_value", "cache_position", "num_items_in_batch", "next_sentence_label"),
    *("output_attentions", "output_hidden_states", "return_dict"),
}
_HOOKS = [
    f"register_{kind}_hook"
    for kind in ("forward", "forward_pre", "backward", "full_backward", "full_backward_pre")
]
# Context for creating a model whose weights will be overwritten.
_Made = Callable[[], AbstractContextManager[Any]]
_INITIALISATION = ContextVar[_Made]("skip_initialisation", default=nullcontext)


@contextmanager
def skip_initialisation(made: _Made = Undrawn) -> Iterator[None]:
    """A context in which new models skip initialisation, because a folder's weights are copied.

    Layers added by a subclass are initialised, since the folder may lack them.

    Args:
        made: ``shapes_alone`` if no subclass may read the weights meanwhile.
    """
    token = _INITIALISATION.set(made)
    try:
        yield
    finally:
        _INITIALISATION.reset(token)


def _with_signature(function: Callable[..., Any], shown: inspect.Signature) -> Callable[..., Any]:
    """A method that calls ``function`` but shows another signature after ``self``."""

    @wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = shown.replace(parameters=[self_parameter, *shown.parameters.values()])  # pyright: ignore
    return method


def _refuse_hook(base: str, whole: str, *_: Any, **__: Any) -> None:
    raise InputError(
        f"a hook on {base} would never run: {whole} does not run this module, it "
        "shares its layers; hook the modules in .model, or use output_hidden_states=True"
    )


class PreTrainedModel(CommonModel):
    """A packed model with the arguments and outputs of Transformers 4.57.6.

    Padding costs nothing: it is removed before the encoder, and outputs are zero there.

    Attributes:
        model: the packed model.
        packed: if false, padding is processed, too, as in Transformers.
        accepts_loss_kwargs: whether ``num_items_in_batch`` affects the loss, for ``Trainer``.
    """

    family: ClassVar[Family]
    architecture: ClassVar[str]
    config_class: ClassVar[type[PretrainedConfig]]
    arguments: ClassVar[inspect.Signature]
    packed = True
    accepts_loss_kwargs: ClassVar[bool] = False

    def __init__(
        self,
        config: PretrainedConfig,
        add_pooling_layer: bool = True,
        *,
        model: Model | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        config = self.config_class.of(config, type(self).__name__)
        refuse(type(self).__name__, unknown, [*vars(config), "num_labels"])
        self.config = config
        self.num_labels = config.num_labels
        self.with_pooler = self.architecture_spec.pooler and (add_pooling_layer or bool(self.kinds))
        with _INITIALISATION.get()():
            self.model = model or self._new_model()
            if model is None:
                self._initialize_heads()
        # Last, as in Transformers: scripts freeze ``list(model.parameters())[:-2]``.
        self.model._modules["heads"] = self.model._modules.pop("heads")
        if getattr(config, "gradient_checkpointing", False):
            self.gradient_checkpointing_enable()
        # State dicts have Transformers' names.
        self._register_state_dict_hook(to_theirs)
        self.register_load_state_dict_pre_hook(to_ours)

    def post_init(self) -> None:
        """Initialise layers added by a subclass, and heads by its own rule."""
        super().post_init()
        self._initialize_heads()

    def _initialize_heads(self, lacking: Collection[str] | None = None) -> None:
        """Initialise head layers, or those missing in a folder, by the rule of a subclass."""
        if type(self)._init_weights is CommonModel._init_weights:
            return
        for our, their in their_module_names(self.model, self.weight_map).items():
            if our.startswith("heads.") and (lacking is None or f"{their}.weight" in lacking):
                self._init_weights(self.model.get_submodule(our))

    def _new_model(self) -> Model:
        values = self.config.to_dict()
        return Model(
            self.family.read_config(values),
            self.family.specs(self.architecture, values),
            pooler=self.with_pooler,
            labels=tuple(self.config.id2label.values()),
            model_type=self.family.model_type,
        )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "arguments" in vars(cls):  # ``Trainer`` keeps the columns in the signature.
            cls.forward = _with_signature(cls.forward, cls.arguments)

    # Loading, saving and the forward pass; encoder-decoder models override these.
    _fill, _write, _forward = fill, write, run

    @property
    def architecture_spec(self) -> ArchitectureSpec:
        return self.family.architectures[self.architecture]

    @property
    def calls(self) -> Calls:
        return self.family.calls

    @property
    def weight_map(self) -> WeightMap:
        """The mapping to Transformers' names of tensors."""
        return self.family.weight_map

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of heads; empty for the base model."""
        return self.architecture_spec.kinds

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of Transformers' model with this name; also accepts a ``Batch``."""
        if args and isinstance(args[0], Batch):
            return self.model(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            # Without a graph: the lengths of the texts would be its constants.
            return torch.compiler.disable(self.forward)(*args, **kwargs)
        if torch.jit.is_tracing() or torch.compiler.is_exporting():  # pyright: ignore
            raise InputError(
                "a trace would hold the lengths of these texts as constants; ownbert export writes "
                "graphs for texts of any length (--to torch, onnx or openvino)"
            )
        known = self.arguments.parameters
        more = {name: kwargs.pop(name) for name in kwargs.keys() - known.keys()}
        refuse(f"{type(self).__name__}.forward", more.keys() - _COMMON_ARGUMENTS, known)
        try:
            given = {**self.arguments.bind(*args, **kwargs).arguments, **more}
        except TypeError as error:
            raise InputError(f"{type(self).__name__}: {error}") from None
        if "past_key_value" in given:
            given["past_key_values"] = given.pop("past_key_value")
        return self._forward(given)

    # ---- modules by Transformers' names

    def full_name(self, name: str) -> str:
        """Transformers' full name of a tensor or module; names of base models have no prefix."""
        return name if self.kinds else self.weight_map.prefix + name

    def own_name(self, full_name: str) -> str:
        """The inverse of ``full_name``."""
        return full_name if self.kinds else full_name.removeprefix(self.weight_map.prefix)

    @property
    def base_model_prefix(self) -> str:
        return self.weight_map.prefix.rstrip(".")

    @property
    def base_model(self) -> "PreTrainedModel":
        """The model without its heads, sharing the weights."""
        if not self.kinds:
            return self
        if "_base" not in self.__dict__:
            kind = self.base_class()
            pooler = self.architecture_spec.pooler
            base = kind(self.config, add_pooling_layer=pooler, model=self.model)
            base.training = self.training
            refusing = partial(_refuse_hook, self.base_model_prefix, type(self).__name__)
            for hook in _HOOKS:
                setattr(base, hook, refusing)
            self.__dict__["_base"] = base  # not a submodule, otherwise modules appear twice
        return self.__dict__["_base"]

    @classmethod
    def base_class(cls) -> "type[PreTrainedModel]":
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "model" not in self.__dict__.get("_modules", {}):
                raise
        if name == self.base_model_prefix and self.kinds:
            return self.base_model
        if name == "dropout" and self.kinds:
            return self.model.heads[self.kinds[0]].dropout  # pyright: ignore
        without = not self.kinds and not self.with_pooler
        if name == "pooler" and without and self.architecture_spec.pooler:
            return None
        try:
            return find(self.model, self.weight_map, self.full_name(name))
        except AttributeError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """``model.classifier = nn.Linear(...)`` replaces the layer with that name."""
        named = isinstance(value, nn.Module | None) and name != "model"
        if named and "model" in self.__dict__.get("_modules", {}):
            full = self.full_name(name)
            if replace_module(self.model, self.weight_map, full, value):
                return
            if value is not None and has_tensors(self.model, self.weight_map, full):
                raise InputError(f"{full} cannot be replaced here; single layers can")
        super().__setattr__(name, value)  # pyright: ignore[reportArgumentType]

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Generator[tuple[str, nn.Module], None, None]:
        """Modules; those with weights have Transformers' names. With ``memo``, as a module around
        this one calls it to list parameters, parts of fused ones are in modules of their own."""
        names, own = their_module_names(self.model, self.weight_map), self.own_name
        listed = memo is not None and remove_duplicate
        parts = parameter_parts.listed_modules(self.model, self.weight_map, own) if listed else {}
        start = prefix + "." if prefix else ""
        for name, module in super().named_modules(memo, prefix, remove_duplicate):
            our = name.removeprefix(start + "model.")
            if not self.kinds and (our == "heads" or our.startswith("heads.")):
                continue  # modules of the full model on this base
            if our in names:
                name = start + own(names[our])
            if module not in parts:
                yield name, module
            for where, part in parts.get(module, {}).items():
                yield (start + where).removesuffix("."), part

    def get_submodule(self, target: str) -> nn.Module:
        return dict(self.named_modules()).get(target) or super().get_submodule(target)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by Transformers' names; a fused one as its three parts."""
        if recurse and remove_duplicate:
            return parameter_parts.parameters_of(self.named_modules(set(), prefix))
        return super().named_parameters(prefix, recurse, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """A flat list by Transformers' names: ``Trainer`` finds weights to decay by those of
        children.

        ``children`` returns the actual modules.
        """
        modules = dict(self.named_modules())
        yield from parameter_parts.children_by_name(dict(self.named_parameters()), modules)

    def children(self) -> Iterator[nn.Module]:
        return (module for module in self._modules.values() if module is not None)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        parameter_parts.follow(list(self.model.parameters()))
        return moved

    def train(self, mode: bool = True) -> Any:
        if "_base" in self.__dict__:
            self.__dict__["_base"].training = mode
        return super().train(mode)

    def init_weights(self) -> None:
        self.model.initialize()
        self.tie_weights()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    # ---- surgery

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def get_input_embeddings(self) -> nn.Module:
        """The word embeddings; for an image model the patch projection."""
        embeddings = self.model.encoder.embeddings
        return embeddings.projection if self.model.config.image else embeddings.word

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings; a tied output layer follows."""
        self._need_words()
        self.model.set_words(value)
        self.config.vocab_size = self.model.config.vocab_size

    def _need_words(self) -> None:
        if self.model.config.image is not None:
            raise InputError(f"{type(self).__name__} reads images: it has no word embeddings")

    def get_output_embeddings(self) -> nn.Module | None:
        heads = self.model.heads.values()
        return next((h.decoder for h in heads if isinstance(h, MaskedLMHead)), None)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output layer for words; if it is tied, also the word embeddings."""
        layer = self.get_output_embeddings()
        if layer is None:
            raise InputError(f"{type(self).__name__} has no language modelling head")
        weight = getattr(new_embeddings, "weight", None)
        tied = layer.weight is self.model.encoder.embeddings.word.weight
        if not isinstance(weight, nn.Parameter) or (tied and weight is not layer.weight):
            raise InputError(
                "the output layer shares its matrix with the word embeddings; give a layer of the "
                "same parameter, or use set_input_embeddings"
            )
        bias: Any = getattr(new_embeddings, "bias", None)
        layer.weight, layer.bias = weight, bias

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Module:
        """Change the vocabulary size; new rows are the mean of the old ones."""
        self._need_words()
        if new_num_tokens is not None or pad_to_multiple_of:
            size = self.model.config.vocab_size if new_num_tokens is None else new_num_tokens
            step = pad_to_multiple_of or 1
            for number in (size, step):
                if not isinstance(number, int):
                    raise InputError(
                        f"resize_token_embeddings needs a whole number, not {number!r}"
                    )
            self.model.resize(-(-size // step) * step)
            self.config.vocab_size = self.model.config.vocab_size
        return self.get_input_embeddings()

    def prune_heads(self, heads_to_prune: dict[int, Sequence[int]]) -> None:
        """Prune heads, given by layer, and record them in ``config.pruned_heads``."""
        if not isinstance(heads_to_prune, Mapping):
            raise InputError("prune_heads needs the heads of each layer: {0: [1, 2], 3: [0]}")
        self.family.require_pruning()
        self.model.prune_heads({int(i): list(heads) for i, heads in heads_to_prune.items()})
        pruned = self.model.config.pruned_heads
        self.config.pruned_heads = {i: list(heads) for i, heads in pruned.items()}

    def tie_weights(self) -> None:
        self.model.tie()

    # ---- folders

    def _read_generation(self, folder: Path) -> None:
        """Read generation settings; only generative models have any."""

    _write_generation = _read_generation

    def _save(self, folder: Path, state_dict: Any) -> None:
        model = self
        if state_dict is not None:
            model = copy.deepcopy(self)
            model.load_state_dict(state_dict)
        model._write(folder)
        self._write_generation(folder)
        self.config.architectures = [self.architecture]

    @classmethod
    def _describe(cls, given: LoadArguments) -> Any:
        """Read the folder's config.json; it must be of this model."""
        path = given.folder / CONFIG
        values = read_config(path) if given.values is None else given.values
        description = describe_config(values, path, any_architecture=True, config=given.structure)
        if description.family is not cls.family:
            raise InputError(
                f"{given.folder} contains a {description.family.model_type} model; "
                f"{cls.__name__} reads {cls.family.model_type}"
            )
        return description

    @classmethod
    def _require_blocks(cls, description: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
        """Reject a folder that lacks blocks stated in its config.json."""
        require_blocks(tensors, cls.family.weight_map, path, description.config)

    @classmethod
    def _of_folder(
        cls, given: LoadArguments, positional: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        description, (tensors, path) = cls._describe(given), read_weights(given.folder)
        if given.values is not None and not given.mismatched:
            cls._require_blocks(description, tensors, path)
        # Mismatched tensors keep their initial values, and subclasses may read weights.
        plain = not given.mismatched and is_own(cls)
        with skip_initialisation(shapes_alone if plain else Undrawn):
            model = cls(given.config, *positional, **given.further)
        info = model._fill(description, tensors, path, mismatched=given.mismatched)
        model._read_generation(given.folder)
        initialised = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
        model._initialize_heads(initialised)
        return given.finished(model, tensors), info
