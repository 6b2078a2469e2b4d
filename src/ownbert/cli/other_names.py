"""Other programs' names of our commands and options."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ownbert.language.messages import Message

# Commands by their names elsewhere.
_COMMANDS = {
    **dict.fromkeys(("train", "learn"), "ownbert fit, ownbert pretrain or ownbert finetune TASK"),
    **dict.fromkeys(("encode", "vectors", "vectorize"), "ownbert embed"),
    **dict.fromkeys(("infer", "inference", "run", "pipeline"), "ownbert predict"),
    **dict.fromkeys(("eval", "test"), "ownbert evaluate"),
    **dict.fromkeys(("anomaly", "anomalies", "perplexity", "ppl"), "ownbert score"),
    **dict.fromkeys(("info", "show", "summary", "inspect"), "ownbert describe"),
    **dict.fromkeys(("tokenizer", "train-tokenizer", "vocabulary"), "ownbert vocab"),
    **dict.fromkeys(("tokenize", "preprocess"), "ownbert prepare"),
    **dict.fromkeys(("unmask", "fill-mask"), "ownbert fill"),
    **dict.fromkeys(("upload", "publish"), "ownbert push"),
    **dict.fromkeys(("find", "query", "index", "retrieve"), "ownbert search build or find"),
    **dict.fromkeys(("dedup", "deduplicate", "leaks"), "ownbert duplicates"),
    **dict.fromkeys(("cluster", "clusters", "topic"), "ownbert topics"),
    "version": "ownbert --version",
    "help": "ownbert --help",
}
# Tasks by their names in Transformers and in papers.
_TASKS = {
    **dict.fromkeys(
        ("text-classification", "sequence-classification", "classification", "sentiment"),
        "classify",
    ),
    **dict.fromkeys(("multi-label", "multi-label-classification"), "multilabel"),
    **dict.fromkeys(("regression", "score"), "regress"),
    **dict.fromkeys(("ner", "pos", "token-classification", "tagging"), "tag"),
    **dict.fromkeys(("question-answering", "qa", "squad"), "answer"),
    **dict.fromkeys(("multiple-choice", "swag"), "choose"),
    **dict.fromkeys(("sentence-similarity", "similarity", "sts", "embedding"), "embed"),
    **dict.fromkeys(("image-classification", "vision"), "image"),
}
# Options by their names in Transformers' scripts, elsewhere, and in other commands here. A command
# accepts them if it has the option and no other option of that name.
_OPTIONS = {
    "--top-k": "--top",
    "--lr": "--learning-rate",
    "--bs": "--batch-size",
    **dict.fromkeys(("--train-batch-size", "--per-device-train-batch-size"), "--batch-size"),
    **dict.fromkeys(("--num-train-epochs", "--num-epochs", "--n-epochs"), "--epochs"),
    **dict.fromkeys(("--max-seq-length", "--max-seq-len", "--max-len"), "--max-length"),
    **dict.fromkeys(("--text-col", "--text-field", "--text-column-name"), "--text-column"),
    **dict.fromkeys(("--label-col", "--label-field", "--label-column-name"), "--label-column"),
    **dict.fromkeys(("--target-column", "--target-col"), "--label-column"),
    **dict.fromkeys(("--output-dir", "--out-dir", "--out"), "--output"),
    **dict.fromkeys(("--model-name-or-path", "--model-name", "--pretrained"), "--model"),
    **dict.fromkeys(("--steps", "--num-steps", "--max-train-steps"), "--max-steps"),
    **dict.fromkeys(("--minutes", "--time"), "--max-minutes"),
    "--max-minutes": "--minutes",
    **dict.fromkeys(("--separator", "--label-sep"), "--label-separator"),
    "--label-columns": "--label-column",
}
# Options that name files of rows: their purpose, often followed by "file".
_FILE = re.compile(
    r"--(?:(train|training)|(dev|val|valid|validation|eval|evaluation|development)|(test|testing)|"
    r"(unlabell?ed))-?(?:files?|data|(?:data)?set|csv|path|rows|texts)?|--(files?|dataset|csv|data)"
)
# Our options for them; a command uses the first that it has. evaluate and others read one file,
# whatever its purpose.
_FILES = (
    ("--train",),
    ("--dev", "--data"),
    ("--test", "--data"),
    ("--unlabelled",),
    ("--data", "--train"),
)


def meant(group: str, name: str, commands: Collection[str]) -> str | None:
    """Suggest the right name for an unknown command, if it is known.

    Args:
        group: the command group, ``ownbert`` or ``ownbert finetune``.
        name: the name that was typed.
        commands: the fine-tuning tasks.
    """
    name = name.lower().replace("_", "-")
    if group.endswith("finetune"):
        if name in _TASKS:
            return f"ownbert finetune {_TASKS[name]}"
        if Path(name).suffix:
            first = "name the task first, such as ownbert finetune classify --train {file}"
            return Message(first, name)
        return None
    task = name if name in commands else _TASKS.get(name)
    if name not in _COMMANDS and task is not None:
        return Message("ownbert finetune {task} to train, ownbert predict to use", task)
    return _COMMANDS.get(name)


def respelled(
    args: Sequence[str], options: Collection[str], *, with_values: Collection[str] = ()
) -> list[str]:
    """Replace options by the command's spelling: ``--max_length`` is ``--max-length``.

    Args:
        args: the arguments.
        options: the command's options.
        with_values: those whose next argument is a value, which stays as it is.
    """
    spelled, rest = [], iter(args)
    for each in rest:
        if each == "--":
            return [*spelled, each, *rest]
        option, equals, value = each.partition("=")
        dashed = option.replace("_", "-")
        if dashed not in options and option.startswith("--"):
            dashed = _by_other_name(dashed, options)
        known = option.startswith("--") and dashed in options
        spelled.append(f"{dashed}{equals}{value}" if known else each)
        if known and not equals and dashed in with_values:
            spelled += [value for value in [next(rest, None)] if value is not None]
    return spelled


def _by_other_name(option: str, options: Collection[str]) -> str:
    """The command's own name of an option that it does not have; others are returned unchanged."""
    if match := _FILE.fullmatch(option.lower()):
        role = next(i for i, found in enumerate(match.groups()) if found is not None)
        return next((name for name in _FILES[role] if name in options), option)
    return _OPTIONS.get(option, option)
