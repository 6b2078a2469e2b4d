"""The arguments of ``from_pretrained`` and of a forward pass."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from ownbert.errors import InputError
from ownbert.files import model_folder
from ownbert.hf.config import PretrainedConfig, named_dtype

# What Transformers is told about how to load, and there is only one way of here.
_ABOUT_LOADING = (
    "attn_implementation",
    "cache_dir",
    "device_map",
    "force_download",
    "local_files_only",
    "low_cpu_mem_usage",
    "max_memory",
    "mirror",
    "offload_folder",
    "offload_state_dict",
    "proxies",
    "resume_download",
    "token",
    "trust_remote_code",
    "use_auth_token",
    "use_safetensors",
    "weights_only",
)
# Only what says no.
_NOT_HERE = ("from_flax", "from_tf", "load_in_4bit", "load_in_8bit", "quantization_config")


@dataclass
class Arguments:
    """Folder, config, dtype (None: as the config has it) and what goes to the constructor."""

    folder: Path
    config: PretrainedConfig
    dtype: torch.dtype | None
    auto: bool
    mismatched: bool
    others: dict[str, Any]


def read_arguments(
    kind: type[PretrainedConfig], name: str | Path, config: Any, options: dict[str, Any]
) -> Arguments:
    """The arguments of ``from_pretrained`` of a class with configs of ``kind``.

    Options that are keys of the config change it. ``InputError`` for what cannot be done.
    """
    if not isinstance(name, str | Path):
        raise InputError(f"from_pretrained needs a folder, not {name!r}")
    options = {k: v for k, v in options.items() if k not in _ABOUT_LOADING}
    for key in _NOT_HERE:
        if options.pop(key, None):
            raise InputError(f"from_pretrained cannot do {key} here")
    if options.pop("revision", None) not in (None, "main") and not Path(name).exists():
        raise InputError(f"fetch that revision of {name} first, and name the folder")
    folder = model_folder(name) / (options.pop("subfolder", None) or "")
    wanted = options.pop("torch_dtype", None)
    wanted = options.pop("dtype", None) or wanted
    mismatched = bool(options.pop("ignore_mismatched_sizes", False))
    if config is None:
        config, options = kind.from_pretrained(folder, **options, return_unused_kwargs=True)
    elif not isinstance(config, PretrainedConfig):
        config = kind.from_pretrained(config)
    config.name_or_path = str(name)
    auto = wanted == "auto"
    dtype = None if auto else named_dtype(wanted)
    return Arguments(folder, config, dtype, auto, mismatched, options)


def refuse(who: str, names: Any, known: Any) -> None:
    """``InputError`` for arguments that there are not, with the likeliest that is meant."""
    for name in names:
        close = get_close_matches(name, known, 1)
        meant = f"; is {close[0]} meant?" if close else ""
        raise InputError(f"{who} has no argument {name!r}{meant}")


def signature(names: Sequence[str]) -> inspect.Signature:
    """Arguments in this order, each None by default, and any others by name."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=None) for name in names]
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature([*parameters, rest])
