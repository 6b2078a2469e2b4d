"""Google's BERT checkpoints (bert_model.ckpt) as model folders."""

import re
from pathlib import Path

from torch import Tensor

from ownbert.checkpoint import new_model, save
from ownbert.checkpoint.copying import copy_weights, require_blocks, require_fit
from ownbert.checkpoint.description import describe_config
from ownbert.checkpoint.model_files import CONFIG_KEYS
from ownbert.checkpoint.tensor_bundle import INDEX, read_bundle
from ownbert.checkpoint.weights import require_finite
from ownbert.exceptions import InputError
from ownbert.files.input_files import refuse_same
from ownbert.files.json_files import read_json
from ownbert.nn.model import Model
from ownbert.nn.undrawn import shapes_alone
from ownbert.text.folder.tokenizer_folder import read_vocabulary
from ownbert.text.tokenizer import Tokenizer

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
# Optimizer slots of tensors, and counters.
_TRAINING = re.compile(r"/(adam_[mv]|Adam(_1)?|Momentum|ExponentialMovingAverage)$")
_COUNTERS = ("global_step", "beta1_power", "beta2_power", "_CHECKPOINTABLE_OBJECT_GRAPH")
_WORDS = "bert/embeddings/word_embeddings"
# Suffixes of tensor names with ours in Transformers' naming; matrices (inputs, outputs) are
# transposed.
_LEAVES = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
}
# Classes of Transformers, by a tensor that identifies them.
_ARCHITECTURES = {
    "classifier.weight": "BertForSequenceClassification",
    "qa_outputs.weight": "BertForQuestionAnswering",
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
}
# Minimum share of tokens with capital letters in a cased vocabulary: a third of the 29,000 tokens
# in Google's cased vocabularies, and only special tokens and a few stray letters in others.
_CASED = 0.01


def convert(
    checkpoint: str | Path,
    output: str | Path,
    *,
    config: str | Path | None = None,
    vocabulary: str | Path | None = None,
    cased: bool | None = None,
) -> Model:
    """Convert a checkpoint of google-research/bert to a model folder.

    Args:
        checkpoint: ``bert_model.ckpt``, one of its files, or a folder with a single checkpoint.
        output: a new or empty folder.
        config: configuration file; by default bert_config.json beside the checkpoint.
        vocabulary: vocabulary file; by default vocab.txt beside the checkpoint.
        cased: whether capitals are kept; by default whether the vocabulary has any.

    Raises:
        InputError: a file is missing or damaged, files belong to different models, or ``output`` is
            not empty.
    """
    prefix, target = _prefix(Path(checkpoint)), Path(output)
    config = prefix.parent / CONFIG if config is None else Path(config)
    vocabulary = prefix.parent / VOCABULARY if vocabulary is None else Path(vocabulary)
    refuse_same((config, vocabulary), target)
    if target.is_dir() and any(target.iterdir()):
        raise InputError("{target} already contains files; choose another folder", target)
    values = {**read_json(config, check=CONFIG_KEYS), "model_type": "bert"}
    tokens = read_vocabulary(vocabulary)
    path = prefix.with_name(prefix.name + INDEX)
    theirs = read_bundle(prefix, lambda name: not _TRAINING.search(name) and name not in _COUNTERS)
    if _WORDS not in theirs:
        raise InputError(
            "{path}: there is no tensor {words}; only BERT checkpoints are supported", path, _WORDS
        )
    tensors = dict(_renamed(name, tensor) for name, tensor in theirs.items())
    require_finite(tensors, path)
    marker = next((name for name in _ARCHITECTURES if name in tensors), None)
    values["architectures"] = [_ARCHITECTURES[marker] if marker else "BertModel"]
    if marker == "classifier.weight":
        values["id2label"] = {str(i): f"LABEL_{i}" for i in range(len(tensors[marker]))}
    description = describe_config(values, config)
    if not description.pooler:  # Google's checkpoints have one, trained or not
        tensors = {name: t for name, t in tensors.items() if not name.startswith("bert.pooler.")}
    if len(tokens) > description.config.vocab_size:
        raise InputError(
            "{vocabulary} has {count:,} tokens, but the model {vocab_size:,}; they do not "
            "belong together",
            vocabulary,
            len(tokens),
            description.config.vocab_size,
        )
    if cased is None:
        words = [token for token in tokens if not token.startswith("[")]
        cased = sum(token != token.lower() for token in words) > _CASED * len(words)
    longest = description.config.max_length
    tokenizer = Tokenizer.wordpiece(tokens, do_lower_case=not cased, max_length=longest)
    require_blocks(tensors, description.weight_map, path, description.config)
    with shapes_alone():
        model = new_model(description, pooler=description.pooler)
    report = copy_weights(model, tensors, description.family.weight_map, description=description)
    require_fit(report, path)
    save(model, target, tokenizer=tokenizer, architecture=description.architecture)
    return model.eval()


def _prefix(path: Path) -> Path:
    """The path of a checkpoint without the extensions of its files."""
    if path.is_dir():
        index_files = sorted(path.glob("*" + INDEX))
        if len(index_files) != 1:
            raise InputError(
                "{path} contains {count} checkpoints; name one, without .index",
                path,
                len(index_files),
            )
        path = index_files[0]
    return path.with_name(re.sub(r"\.(index|data-\d+-of-\d+|meta)$", "", path.name))


def _renamed(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """A tensor with its name in Transformers, transposed if it is the matrix of a dense layer."""
    *path, leaf = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if path == ["cls", "squad"]:
        path = ["qa_outputs"]
    if not path and leaf in ("output_weights", "output_bias"):
        path = ["classifier"]
    if path == ["cls", "predictions"] and leaf == "output_bias":
        return "cls.predictions.bias", tensor
    if leaf.endswith("_embeddings"):
        path, leaf = [*path, leaf], "weight"
    tensor = tensor.t() if leaf == "kernel" and tensor.ndim == 2 else tensor
    return ".".join((*path, _LEAVES.get(leaf, leaf))), tensor
