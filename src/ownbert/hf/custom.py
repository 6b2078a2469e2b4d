"""``BertPreTrainedModel`` and other base classes of custom models.

``class Mine(BertPreTrainedModel)`` with ``self.bert = BertModel(config)`` and further layers, as
in scripts for Transformers; the author defines the forward method.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ownbert.checkpoint.weights import read_weights, write_model
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import Family
from ownbert.hf.common import CommonModel, LoadArguments
from ownbert.hf.configs import PretrainedConfig
from ownbert.hf.pretrained import PreTrainedModel, skip_initialisation
from ownbert.hf.weights.states import initialise, other_shapes


class CustomModel(CommonModel):
    """A custom model around a ``PreTrainedModel``."""

    family: ClassVar[Family]
    config_class: ClassVar[type[PretrainedConfig]]

    def __init__(self, config: PretrainedConfig, *_: Any, **__: Any) -> None:
        super().__init__()
        self.config = self.config_class.of(config, type(self).__name__)

    def init_weights(self) -> None:
        self.post_init()

    @property
    def base_model_prefix(self) -> str:
        return self.family.weight_map.prefix.rstrip(".")

    @property
    def base_model(self) -> Any:
        return getattr(self, self.base_model_prefix, self)

    def get_input_embeddings(self) -> Any:
        return self.base_model.get_input_embeddings()

    def resize_token_embeddings(self, new_num_tokens: int | None = None, **options: Any) -> Any:
        return self.base_model.resize_token_embeddings(new_num_tokens, **options)

    def prune_heads(self, heads_to_prune: dict[int, Any]) -> None:
        self.base_model.prune_heads(heads_to_prune)

    def _save(self, folder: Path, state_dict: Any) -> None:
        state = self.state_dict() if state_dict is None else state_dict
        tensors = {name: t.detach().cpu().clone().contiguous() for name, t in state.items()}
        values = {**self.config.to_dict(), "architectures": [type(self).__name__]}
        values |= self.family.write_config(self.config.structure())
        write_model(folder, values, tensors)

    @classmethod
    def _of_folder(
        cls, given: LoadArguments, positional: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Load the folder's tensors whose names exist in this model; at least one must."""
        with skip_initialisation():
            model = cls(given.config, *positional, **given.further)
        read, path = read_weights(given.folder)
        state = model.state_dict()
        full_name = cls.family.weight_map.full_name
        named = {full_name(name): tensor for name, tensor in read.items()} | read
        present = {name: named[name] for name in state if name in named}
        wrong = other_shapes(present, state)
        if not present or (wrong and not given.mismatched):
            why = "it contains no tensor of this model"
            if wrong:
                name, has, wants = wrong[0]
                why = f"{name} has shape {tuple(has)}, expected {tuple(wants)}"
            raise InputError(f"{path} does not fit {cls.__name__}: {why}")
        fitting = {n: t for n, t in present.items() if n not in {name for name, *_ in wrong}}
        new = [name for name in state if name not in present]
        lacking = state.keys() - fitting.keys()
        for place, inside in model.named_modules():
            if isinstance(inside, PreTrainedModel):
                starts = place + "."
                names = [n.removeprefix(starts) for n in lacking if n.startswith(starts)]
                initialise(inside, [inside.full_name(name) for name in names])
        model.load_state_dict(fitting, strict=False)
        if new or wrong:
            names = ", ".join([*new, *(name for name, *_ in wrong)])
            warnings.warn(
                f"{cls.__name__} from {given.folder}: {names} are newly initialised", stacklevel=4
            )
        left = sorted(n for n in read if n not in state and full_name(n) not in state)
        info = {"missing_keys": new, "unexpected_keys": left, "mismatched_keys": wrong}
        return given.finished(model, read), {**info, "error_msgs": []}
