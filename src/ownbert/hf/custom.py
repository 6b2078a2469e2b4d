"""``BertPreTrainedModel`` and so on: the base classes of custom models.

``class Mine(BertPreTrainedModel)`` with ``self.bert = BertModel(config)`` and further layers, as
in scripts written for Transformers; the forward method is the author's.
"""

import json
import warnings
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save as to_bytes
from torch import nn

from ownbert.checkpoint.weights import WEIGHTS, read_weights
from ownbert.errors import InputError
from ownbert.families.family import Family
from ownbert.files import atomic_path, make_folder
from ownbert.hf.arguments import read_arguments
from ownbert.hf.config import CONFIG, PretrainedConfig
from ownbert.hf.pretrained import PreTrainedModel, written_over
from ownbert.hf.states import initialise


class CustomModel(nn.Module):
    """A custom model around a ``PreTrainedModel``."""

    family: ClassVar[Family]
    config_class: ClassVar[type[PretrainedConfig]]

    def __init__(self, config: PretrainedConfig, *_: Any, **__: Any) -> None:
        super().__init__()
        if getattr(config, "family", None) is not self.family:
            kind = type(config).__name__
            raise InputError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, not a {kind}"
            )
        self.config = config

    def post_init(self) -> None:
        """Initialise the layers that are not part of a ``PreTrainedModel`` inside this one."""
        inside = {
            module
            for model in self.modules()
            if isinstance(model, PreTrainedModel)
            for module in model.modules()
        }
        for module in self.modules():
            if module not in inside and isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.structure().initializer_range)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    @property
    def base_model_prefix(self) -> str:
        return self.family.weight_map.prefix.rstrip(".")

    @property
    def base_model(self) -> Any:
        return getattr(self, self.base_model_prefix, self)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.get_input_embeddings()

    def resize_token_embeddings(self, new_num_tokens: int | None = None, **options: Any) -> Any:
        return self.base_model.resize_token_embeddings(new_num_tokens, **options)

    def prune_heads(self, heads_to_prune: dict[int, Any]) -> None:
        self.base_model.prune_heads(heads_to_prune)

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        self.base_model.gradient_checkpointing_enable()

    def num_parameters(self, only_trainable: bool = False) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not only_trainable)

    def save_pretrained(
        self, save_directory: str | Path, is_main_process: bool = True, state_dict: Any = None
    ) -> None:
        """Write ``config.json`` and ``model.safetensors``, named as in Transformers."""
        if not is_main_process:
            return
        state = self.state_dict() if state_dict is None else state_dict
        tensors = {name: t.detach().cpu().clone().contiguous() for name, t in state.items()}
        values = {**self.config.to_dict(), "architectures": [type(self).__name__]}
        values |= self.family.write_config(self.config.structure())
        folder = make_folder(save_directory)
        with atomic_path(folder / CONFIG) as config, atomic_path(folder / WEIGHTS) as weights:
            weights.write_bytes(to_bytes(tensors, metadata={"format": "pt"}))
            config.write_text(json.dumps(values, ensure_ascii=False, indent=2), encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *positional: Any,
        config: Any = None,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Any:
        """The model with the folder's tensors that have names of this model, in evaluation mode.

        Tensors that the folder lacks are newly initialised, with a warning. Arguments are those of
        ``PreTrainedModel.from_pretrained``.

        Raises:
            InputError: a shape differs (without ``ignore_mismatched_sizes``), or no tensor is of
                this model.
        """
        given = read_arguments(cls.config_class, pretrained_model_name_or_path, config, options)
        with written_over():
            model = cls(given.config, *positional, **given.further)
        read, path = read_weights(given.folder)
        own = model.state_dict()
        full_name = cls.family.weight_map.full_name
        named = {full_name(name): tensor for name, tensor in read.items()} | read
        there = {name: named[name] for name in own if name in named}
        wrong = [(n, t.shape, own[n].shape) for n, t in there.items() if t.shape != own[n].shape]
        if not there or (wrong and not given.mismatched):
            why = "it holds no tensor of this model"
            if wrong:
                name, has, wants = wrong[0]
                why = f"{name} has shape {tuple(has)}, expected {tuple(wants)}"
            raise InputError(f"{path} does not fit {cls.__name__}: {why}")
        fitting = {n: t for n, t in there.items() if n not in {name for name, *_ in wrong}}
        new = [name for name in own if name not in there]
        for place, inside in model.named_modules():
            if isinstance(inside, PreTrainedModel):
                starts = place + "."
                lacking = own.keys() - fitting.keys()
                names = [n.removeprefix(starts) for n in lacking if n.startswith(starts)]
                initialise(inside, [inside.full_name(name) for name in names])
        model.load_state_dict(fitting, strict=False)
        if new or wrong:
            names = ", ".join([*new, *(name for name, *_ in wrong)])
            warnings.warn(
                f"{cls.__name__} from {given.folder}: {names} are newly initialised", stacklevel=2
            )
        left = sorted(n for n in read if n not in own and full_name(n) not in own)
        model = model.to(given.dtype or model.dtype).eval()
        info = {"missing_keys": new, "unexpected_keys": left, "mismatched_keys": wrong}
        return (model, {**info, "error_msgs": []}) if output_loading_info else model
