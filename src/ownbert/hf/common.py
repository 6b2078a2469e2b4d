"""The common base of all models with Transformers' API, and the arguments of ``from_pretrained``.

B sequences, S longest sequence, L layers, H heads.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import ArchitectureSpec
from ownbert.hf.configs import PretrainedConfig, check_attention, parse_dtype, read_config
from ownbert.hub import HUB_OPTIONS, pretrained_folder
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.encoder import Encoder
from ownbert.nn.model import Model

# Loading options of Transformers that are ignored, because there is only one way to load.
IGNORED = (
    *("attn_implementation", "device_map", "low_cpu_mem_usage", "max_memory", "mirror", "proxies"),
    *("offload_folder", "offload_state_dict", "resume_download", "trust_remote_code"),
    *("use_auth_token", "use_safetensors", "weights_only"),
)
# Options that must be false, and what to use instead.
_UNSUPPORTED = {
    **dict.fromkeys(("adapter_kwargs", "from_flax", "from_tf", "gguf_file", "key_mapping"), ""),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "quantization_config", "tp_plan"), ""),
    "variant": "; it reads model.safetensors, and dtype='float16' converts the weights",
}


@dataclass
class LoadArguments:
    """Parsed arguments of ``from_pretrained``.

    Args:
        values: values of the folder's config.json; None if ``config`` was given, so it is not read.
        structure: structure of the network by these values.
        dtype: dtype to convert the model to; None: float32, unless ``auto``.
        auto: whether to use the dtype of the folder's tensors.
        mismatched: whether tensors of another shape are newly initialised.
    """

    folder: Path
    config: PretrainedConfig
    values: Mapping[str, Any] | None
    structure: EncoderConfig | None
    dtype: torch.dtype | None
    auto: bool
    mismatched: bool
    further: dict[str, Any]

    def finished(self, model: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The model in evaluation mode and in the requested dtype."""
        dtype = self.dtype
        if self.auto:
            dtype = next(t.dtype for t in tensors.values() if t.is_floating_point())
        model = model.to(dtype) if dtype else model
        model.config.dtype = model.dtype
        return model.eval()


class CommonModel(nn.Module):
    """The methods of Transformers' ``PreTrainedModel`` that do not depend on the family."""

    config: Any
    config_class: ClassVar[type[PretrainedConfig]]
    _save: Any  # writes a folder, given it and a state dict or None
    _of_folder: Any  # LoadArguments, positional arguments -> model, Transformers' loading info
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # Class attributes read by Transformers: all names are required in a state dict, nothing stays
    # in float32, and there is a single implementation of attention.
    _keys_to_ignore_on_save = _keys_to_ignore_on_load_missing = None
    _keys_to_ignore_on_load_unexpected = _keep_in_fp32_modules = None
    _tied_weights_keys: ClassVar[list[str] | None] = None
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = False
    _supports_attention_backend = _can_compile_fullgraph = False

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return False

    @classmethod
    def _from_config(cls, config: Any, **options: Any) -> Any:
        """Create a new model, for ``AutoModel.from_config``."""
        check_attention("attn_implementation", options.get("attn_implementation"))
        options = _supported(options)
        dtype = options.pop("dtype", options.pop("torch_dtype", None))
        model = cls(config, **options)
        return model.to(parse_dtype(dtype) or model.dtype)

    @property
    def name_or_path(self) -> str:
        return self.config.name_or_path

    @property
    def device(self) -> torch.device:
        return next(iter(super().parameters())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(super().parameters())).dtype

    @classmethod
    def can_generate(cls) -> bool:
        return bool(getattr(cls, "generate", None))

    def get_memory_footprint(self, return_buffers: bool = True) -> int:
        """Total size of the parameters in bytes."""
        return sum(p.numel() * p.element_size() for p in self.parameters())

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of parameters, with tied ones counted once."""
        tables = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)}
        return sum(
            p.numel()
            for p in self.parameters()
            if (p.requires_grad or not only_trainable)
            and not (exclude_embeddings and id(p) in tables)
        )

    def estimate_tokens(self, input_dict: Mapping[str, Any]) -> int:
        """The number of token ids (of pixel values) in a batch, padding included."""
        given = input_dict.get(self.main_input_name)
        return 0 if given is None else given.numel()

    def floating_point_ops(
        self, input_dict: Mapping[str, Any], exclude_embeddings: bool = True
    ) -> int:
        """Transformers' estimate for a step, which ``Trainer`` logs as ``total_flos``.

        Source: Kaplan et al. 2020, section 2.1.
        """
        parameters = self.num_parameters(exclude_embeddings=exclude_embeddings)
        return 6 * self.estimate_tokens(input_dict) * parameters

    # ---- folders

    def save_pretrained(
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: Any = None,
        **options: Any,
    ) -> None:
        """Write ``config.json`` and ``model.safetensors``, which Transformers can load.

        Args:
            save_directory: folder to write, created if necessary.
            is_main_process: if false, nothing is written.
            state_dict: weights instead of the model's own.
            options: other options of Transformers, which are ignored.

        Raises:
            InputError: ``push_to_hub`` is requested, or the folder cannot be written.
        """
        if options.get("push_to_hub"):
            raise InputError("push_to_hub is not supported; save the folder and upload it")
        if is_main_process:
            self._save(Path(save_directory), state_dict)

    @classmethod
    @in_float32
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path | None,
        *positional: Any,
        config: Any = None,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Any:
        """Load the model of a folder or of the hub, in evaluation mode.

        Missing heads (in a custom model all missing tensors) are newly initialised, with a warning;
        so are tensors of another shape with ``ignore_mismatched_sizes``. Heads that this class
        lacks are left out.

        Args:
            pretrained_model_name_or_path: the folder, or the name on the hub; None with ``config``
                and ``state_dict``.
            config: by default the folder's.
            output_loading_info: whether to return Transformers' loading info, too.
            options: keys of the config change it; ``state_dict`` replaces the folder's weights;
                ``dtype``, ``ignore_mismatched_sizes``, ``revision`` and ``subfolder`` are as in
                Transformers.

        Raises:
            InputError: other tensors do not fit, or an argument is not supported.
        """
        _check_positional(cls, positional)
        name = pretrained_model_name_or_path
        if name is None or "state_dict" in options:
            model, info = cls._of_state(name, config, options, positional)
        else:
            given = _read_arguments(cls, name, config, options)
            model, info = cls._of_folder(given, positional)
        return (model, info) if output_loading_info else model

    # ---- weights of new layers

    @classmethod
    def _of_state(
        cls, name: Any, config: Any, options: Mapping[str, Any], positional: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The model of a state dict, and its missing tensors, for ``from_pretrained``."""
        options = dict(options)
        state = options.pop("state_dict", None)
        if state is None or (name is None and config is None):
            raise InputError("from_pretrained needs a folder, or config and state_dict")
        if not isinstance(state, Mapping):
            raise InputError(
                f"state_dict is a {type(state).__name__}; it must be a dict of tensors"
            )
        kind, dtype = cls.config_class, options.pop("dtype", options.pop("torch_dtype", None))
        if config is None:
            config, options = kind.from_pretrained(name or "", return_unused_kwargs=True, **options)
        model = cls(copy.deepcopy(config), *positional, **_supported(options))
        missing, unexpected = model.load_state_dict(state, strict=False)
        if missing:
            names = ", ".join(missing)
            warnings.warn(
                f"{cls.__name__}: {names} are not in the state_dict, and are newly initialised",
                stacklevel=4,
            )
        info = {"missing_keys": missing, "unexpected_keys": unexpected}
        model = model.to(parse_dtype(dtype) or model.dtype).eval()
        return model, {**info, "mismatched_keys": [], "error_msgs": []}

    def post_init(self) -> None:
        """Initialise the layers added by a subclass with ``_init_weights``."""
        inside = {
            module
            for model in self.modules()
            if isinstance(model, Model) or (isinstance(model, CommonModel) and model is not self)
            for module in model.modules()
        }
        for module in self.modules():
            if module not in inside:
                self._init_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise with normal weights and zero biases; subclasses may override this."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.structure().initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    # ---- training

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        """Recompute activations inside blocks in the backward pass: less memory, more time.

        Arguments for PyTorch's checkpointing are ignored.
        """
        self._set_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        self._set_checkpointing(False)

    def _set_checkpointing(self, value: bool) -> None:
        for encoder in self._encoders():
            encoder.gradient_checkpointing = value

    @property
    def is_gradient_checkpointing(self) -> bool:
        return any(encoder.gradient_checkpointing for encoder in self._encoders())

    # Names in Transformers 5.
    activation_checkpointing_enable = gradient_checkpointing_enable
    activation_checkpointing_disable = gradient_checkpointing_disable
    is_activation_checkpointing = is_gradient_checkpointing

    def _encoders(self) -> list[Encoder]:
        return [module for module in self.modules() if isinstance(module, Encoder)]

    def enable_input_require_grads(self) -> None:
        """Give the output of the word embeddings a gradient although all weights are frozen."""
        words: nn.Module = self.get_input_embeddings()  # pyright: ignore
        hook = words.register_forward_hook(lambda module, args, out: out.requires_grad_())
        self._require_grads_hook = hook

    def disable_input_require_grads(self) -> None:
        self._require_grads_hook.remove()

    # ---- what forward methods of subclasses call

    def get_decoder(self) -> Any:
        return self

    def set_attn_implementation(self, attn_implementation: Any) -> None:
        """No effect: there is a single implementation, which adapts to device and input.

        Raises:
            InputError: Transformers has no implementation with this name.
        """
        check_attention("attn_implementation", attn_implementation)

    def get_extended_attention_mask(
        self,
        attention_mask: Tensor,
        input_shape: tuple[int, ...],
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The additive mask of scores: (B, S) or (B, S, S) -> (B, 1, 1 or S, S), 0 where
        visible."""
        dtype, seen = dtype or self.dtype, attention_mask
        if seen.ndim == 2 and self.config.is_decoder:
            length = input_shape[-1]
            past = torch.ones(length, seen.shape[1], dtype=torch.bool, device=seen.device)
            seen = seen[:, None] * past.tril(seen.shape[1] - length)
        return self.invert_attention_mask(seen.to(dtype))

    def invert_attention_mask(self, encoder_attention_mask: Tensor) -> Tensor:
        """(B, S) or (B, S, S) -> (B, 1, 1 or S, S): 0 for ones, and the lowest number for zeros."""
        mask = encoder_attention_mask
        mask = mask[:, None] if mask.ndim == 3 else mask[:, None, None]
        mask = mask if mask.is_floating_point() else mask.to(self.dtype)
        return (1 - mask) * torch.finfo(mask.dtype).min

    def get_head_mask(
        self, head_mask: Tensor | None, num_hidden_layers: int, is_attention_chunked: bool = False
    ) -> Any:
        """(H) or (L, H) -> (L, 1, H, 1, 1); None for each layer without one."""
        if head_mask is None:
            return [None] * num_hidden_layers
        mask = head_mask.to(self.dtype)
        if mask.ndim == 1:
            mask = mask.expand(num_hidden_layers, -1)
        mask = mask[:, None, :, None, None] if mask.ndim == 2 else mask
        return mask[..., None] if is_attention_chunked else mask


def _read_arguments(
    model_class: Any, name: str | Path, config: Any, options: dict[str, Any]
) -> LoadArguments:
    """Parse the arguments of ``from_pretrained``.

    Args:
        config: a config, a folder of one, or None for that of ``name``.
        options: further arguments; keys of the config change it.

    Raises:
        InputError: a folder is missing, or an option is not supported.
    """
    kind: type[PretrainedConfig] = model_class.config_class
    if torch.get_default_device().type == "meta":
        raise InputError("from_pretrained copies weights, which the device meta does not hold")
    check_attention("attn_implementation", options.get("attn_implementation"))
    folder = pretrained_folder(name, options)
    hub = {k: options[k] for k in HUB_OPTIONS if k in options}
    options = _supported(options)
    given_dtype = options.pop("torch_dtype", None)
    given_dtype = options.pop("dtype", None) or given_dtype
    mismatched = bool(options.pop("ignore_mismatched_sizes", False))
    values = structure = None
    if config is None:
        values = read_config(folder)
        stored = kind.from_dict(values)
        structure = stored.first_structure
        config, options = stored.changed(values, options)
    elif isinstance(config, str | Path):
        config = kind.from_pretrained(config, **hub)
    else:
        config = copy.deepcopy(kind.of(config, model_class.__name__))
    config.name_or_path = str(name)
    auto = given_dtype == "auto"
    dtype = None if auto else parse_dtype(given_dtype)
    return LoadArguments(folder, config, values, structure, dtype, auto, mismatched, options)


def _supported(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that are ignored or only find a folder; ``InputError`` for others
    that are not supported."""
    for key, instead in _UNSUPPORTED.items():
        if options.get(key):
            raise InputError(f"from_pretrained does not support {key}{instead}")
    left_out = {*IGNORED, *_UNSUPPORTED, *HUB_OPTIONS, "subfolder"}
    return {key: value for key, value in options.items() if key not in left_out}


def is_own(model_class: Any) -> bool:
    """Whether a class is OwnBERT's, not a subclass, whose constructor may take other arguments."""
    return model_class.__module__.split(".")[0] == "ownbert"


def _check_positional(model_class: Any, given: Sequence[Any]) -> None:
    """Raise ``InputError`` for positional arguments of ``from_pretrained`` after the folder.

    As in Transformers, only classes without a head have one: ``add_pooling_layer``.
    """
    if not given or not is_own(model_class):
        return
    spec: ArchitectureSpec = model_class.family.architectures[model_class.architecture]
    pooled = spec.pooler and not spec.kinds
    if not (pooled and [*map(type, given)] == [bool]):
        raise InputError(
            f"{model_class.__name__}.from_pretrained: only the folder may be given by position; "
            "write the names of other arguments, such as config="
        )


def refuse(who: str, names: Any, known: Any) -> None:
    """Raise ``InputError`` for unknown arguments, suggesting a similar name."""
    for name in names:
        close = get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{who} has no argument {name!r}{hint}")
