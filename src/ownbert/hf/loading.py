"""``load`` and ``save`` for models with Transformers' API."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ownbert import checkpoint
from ownbert.checkpoint.description import describe
from ownbert.checkpoint.model_files import read_config
from ownbert.checkpoint.transformer_folder import kind_of, save_translation
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.hf.classes import config_of, model_of
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.hub import model_folder
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer


@in_float32
def load(
    folder: str | Path,
    *,
    heads: Sequence[str | HeadSpec] | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
) -> Any:
    """Load the model of a folder, in evaluation mode, with the class named in its config.json.

    It accepts ``input_ids``, ``attention_mask`` etc. (``pixel_values`` for images) as in
    Transformers, or a packed ``Batch``; ``model`` is the packed model inside.

    Args:
        folder: a model folder in Hugging Face's format.
        heads: heads instead of the folder's; missing ones are newly initialised.
        pooler: whether there is a pooler; by default as in the folder.
        labels: names of the classes, instead of the folder's.
        dropout: dropout rate of all layers, instead of the folder's.

    Raises:
        InputError: a file is missing, a tensor is missing, unexpected or of the wrong shape, or
            the config has an unsupported value.
    """
    folder = model_folder(folder)
    path = folder / checkpoint.CONFIG
    values = dict(read_config(path))
    kind = kind_of(values)
    if kind is not None:
        if heads is not None or pooler is not None or labels:
            raise InputError(
                f"{folder} contains an encoder-decoder model, which has no other heads"
            )
        if dropout is not None:
            own = (key for key in kind.rates if key != "activation_dropout" or values.get(key))
            values |= dict.fromkeys(own, dropout)
        (named, *_) = values.get("architectures") or [None]
        model_class = model_of(named if named in kind.architectures else kind.generating)
        return model_class.from_pretrained(
            folder, config=model_class.config_class.from_dict(values)
        )
    description = describe(folder, values=values)
    family = description.family
    model = checkpoint.load(description, heads=heads, pooler=pooler, labels=labels, dropout=dropout)
    architecture = description.architecture if heads is None else checkpoint.architecture_of(model)
    values |= family.write_config(model.config)
    if model.labels:
        values |= {"id2label": dict(enumerate(model.labels)), "num_labels": None}
        values["label2id"] = None if labels else values.get("label2id")
    config = config_of(family.model_type)(**values, name_or_path=str(folder))
    pooled = model.pooler is not None
    made = model_of(architecture)(config, add_pooling_layer=pooled, model=model)
    made._read_generation(folder)
    return made.eval()


def save(
    model: Model | PreTrainedModel, folder: str | Path, *, tokenizer: Tokenizer | None = None
) -> None:
    """Write a folder that Transformers can load.

    Args:
        model: a packed model, or one with Transformers' API.
        folder: folder to write, created if necessary; files of the same names are replaced.
        tokenizer: tokenizer to save with the model, if any.
    """
    if not isinstance(model, Model):
        model._write(folder, tokenizer=tokenizer)
        model._write_generation(Path(folder))
    elif model.decoder is not None:
        save_translation(model, folder, tokenizer=tokenizer)
    else:
        checkpoint.save(model, folder, tokenizer=tokenizer)
