"""``load`` and ``save`` of the familiar face: a folder, whatever is in it, as the right model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ownbert import checkpoint
from ownbert.checkpoint.description import described
from ownbert.checkpoint.translation import is_translation, save_translation
from ownbert.checkpoint.weights import read_model_json
from ownbert.config import HeadSpec
from ownbert.errors import InputError
from ownbert.hf.classes import config_of, model_of
from ownbert.hf.marian import MarianConfig, MarianMTModel
from ownbert.hf.pretrained import PreTrainedModel
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer


def load(
    folder: str | Path,
    *,
    heads: Sequence[str | HeadSpec] | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
) -> Any:
    """The model of a folder, in evaluation mode: of the class that its ``architectures`` names.

    It takes ``input_ids``, ``attention_mask`` and so on (``pixel_values`` for pictures) as in
    Transformers, or a packed ``Batch``; ``model`` is the packed model inside. With ``heads`` or
    ``pooler`` an encoder gets these instead of those of the folder: those that it lacks start anew.
    ``InputError`` for a missing file, any tensor that is missing, unexpected or of the wrong shape,
    and a config that asks for what we cannot do.
    """
    path = Path(folder) / checkpoint.CONFIG
    values = dict(read_model_json(path))
    if is_translation(values):
        if heads is not None or pooler is not None or labels:
            raise InputError(f"{folder} holds an encoder-decoder model, which has no other heads")
        if dropout is not None:
            values |= {"dropout": dropout, "attention_dropout": dropout}
        return MarianMTModel.from_pretrained(folder, config=MarianConfig.from_dict(values))
    description = described(values, path)
    family = description.family
    model = checkpoint.load(
        folder,
        heads=heads,
        pooler=pooler,
        labels=labels,
        dropout=dropout,
        description=description,
    )
    architecture = description.architecture if heads is None else checkpoint.architecture_of(model)
    values |= family.write_config(model.config)
    if model.labels:
        values["id2label"] = dict(enumerate(model.labels))
        values.pop("num_labels", None)
    config = config_of(family.model_type)(**values, name_or_path=str(folder))
    pooled = model.pooler is not None
    return model_of(architecture)(config, add_pooling_layer=pooled, model=model).eval()


def save(
    model: Model | PreTrainedModel, folder: str | Path, *, tokenizer: Tokenizer | None = None
) -> None:
    """Write a folder that Transformers loads, of a packed model or one of the familiar face."""
    if not isinstance(model, Model):
        model._write(folder, tokenizer=tokenizer)
    elif model.decoder is not None:
        save_translation(model, folder, tokenizer=tokenizer)
    else:
        checkpoint.save(model, folder, tokenizer=tokenizer)
