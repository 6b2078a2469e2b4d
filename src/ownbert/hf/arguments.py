"""The arguments of ``from_pretrained`` and of forward passes."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import ArchitectureSpec
from ownbert.hf.configs import PretrainedConfig, check_attention, parse_dtype, read_config
from ownbert.hub import HUB_OPTIONS, pretrained_folder

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


def read_arguments(
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
    options = supported(options)
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


def supported(options: Mapping[str, Any]) -> dict[str, Any]:
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


def check_positional(model_class: Any, given: Sequence[Any]) -> None:
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


def signature(names: Sequence[str], rest: str | None = None) -> inspect.Signature:
    """A signature with these arguments, each None by default; ``rest`` collects other keywords."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=None) for name in names]
    if rest is not None:
        parameters.append(inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def with_signature(function: Callable[..., Any], shown: inspect.Signature) -> Callable[..., Any]:
    """A method that calls ``function`` but shows another signature after ``self``."""

    @wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = shown.replace(parameters=[self_parameter, *shown.parameters.values()])  # pyright: ignore
    return method
