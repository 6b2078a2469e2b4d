"""``load`` and ``save`` for models that are called like those of Transformers."""

from collections.abc import Sequence
from pathlib import Path

from ownbert import checkpoint
from ownbert.checkpoint.description import describe
from ownbert.checkpoint.model_files import read_config
from ownbert.checkpoint.transformer_folder import kind_of, load_translation, save_translation
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.hf.forward_pass.call import Config, PaddedCall
from ownbert.hf.tokenizer import PreTrainedTokenizer
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
) -> Model:
    """Load the model of a folder, in evaluation mode.

    It is called with ``input_ids``, ``attention_mask`` etc. (``pixel_values`` for images), as the
    class of Transformers that its config.json names, or with a packed ``Batch``. A model with an
    encoder and a decoder (Marian, T5) is called with a ``Batch`` only.

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
    values = dict(read_config(folder / checkpoint.CONFIG))
    kind = kind_of(values)
    if kind is not None:
        if heads is not None or pooler is not None or labels or dropout is not None:
            raise InputError(
                f"{folder} contains an encoder-decoder model, which has no other heads"
            )
        (name, *_) = values.get("architectures") or [kind.generating]
        if name in kind.answering:
            return checkpoint.load(describe(folder, values=values, with_decoder=True))
        return load_translation(folder)[0]
    description = describe(folder, values=values)
    model = checkpoint.load(description, heads=heads, pooler=pooler, labels=labels, dropout=dropout)
    architecture = description.architecture if heads is None else checkpoint.architecture_of(model)
    if model.labels:
        values["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        if labels:
            values["label2id"] = {label: i for i, label in enumerate(labels)}
    model.padded_call = PaddedCall(architecture, Config(description.family.model_type, values))
    return model


def save(
    model: Model, folder: str | Path, *, tokenizer: Tokenizer | PreTrainedTokenizer | None = None
) -> None:
    """Write a folder that Transformers can load.

    Args:
        model: a model.
        folder: folder to write, created if necessary; files of the same names are replaced.
        tokenizer: tokenizer to save with the model, if any.
    """
    if isinstance(tokenizer, PreTrainedTokenizer):
        tokenizer = tokenizer.current()
    if model.decoder is not None:
        save_translation(model, folder, tokenizer=tokenizer)
    elif model.padded_call is None:
        checkpoint.save(model, folder, tokenizer=tokenizer)
    else:
        model.padded_call.save(model, folder, tokenizer)
