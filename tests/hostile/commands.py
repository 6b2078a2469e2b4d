"""A valid command line of every command, as options and arguments that cases replace one by one."""

from typing import Any

from support.cli import every_command

# The folder of inputs, from the folder in which a command runs.
IN = "../in/"
Names = tuple[str, ...]

_SHORT = {"--max-steps": "1", "--max-length": "32"}
_BERT = {"--model": f"{IN}bert", **_SHORT}
_CLASSES = {"--train": f"{IN}train.csv", "--dev": f"{IN}dev.csv"}


def _tuning(train: str, **options: str) -> dict[str, Any]:
    return {**_BERT, "--train": f"{IN}{train}", "--dev": f"{IN}{train}", **options}


# Arguments by their usual names.
_ARGUMENTS = {
    **dict.fromkeys(("folder", "model"), f"{IN}bert"),
    **dict.fromkeys(("texts", "file"), f"{IN}train.csv"),
}
# Arguments and options by name, of commands that have others than usual; -o is added. A tuple is
# several arguments.
_OTHERS: dict[Names, dict[str, Any]] = {
    ("vocab",): {"inputs": f"{IN}corpus.txt", "--kind": "blank"},
    ("prepare",): {"inputs": f"{IN}corpus.txt", "--tokenizer": f"{IN}vocab", "--processes": "1"},
    ("fit",): {"train": f"{IN}train.csv", "--minutes": "0.02"},
    ("pretrain",): {"tokens": f"{IN}tokens", "--batch-tokens": "256", **_SHORT},
    ("finetune", "multilabel"): _tuning("labels.csv"),
    ("finetune", "regress"): _tuning("ratings.csv"),
    ("finetune", "answer"): _tuning("questions.json"),
    ("finetune", "choose"): _tuning("choices.jsonl"),
    ("finetune", "embed"): _tuning("pairs.csv"),
    ("finetune", "rank"): _tuning("pairs.csv"),
    ("finetune", "tag"): _tuning("tags.conll"),
    ("finetune", "image"): {
        "--train": f"{IN}images.npz",
        "--dev": f"{IN}images.npz",
        "--max-steps": "1",
        "--hidden-size": "16",
        "--layers": "1",
        "--heads": "2",
    },
    ("compare",): {"first": f"{IN}bert", "second": f"{IN}bert"},
    ("probe",): {"model": f"{IN}bert", "--train": f"{IN}train.csv"},
    ("translate", "train"): {
        "--source": f"{IN}source.txt",
        "--target": f"{IN}target.txt",
        "--kind": "blank",
        "--max-steps": "1",
        "--layers": "1",
        "--d-model": "16",
        "--d-ff": "16",
        "--heads": "2",
    },
    ("translate", "use"): {"folder": f"{IN}marian", "texts": f"{IN}source.txt"},
    ("translate", "score"): {
        "folder": f"{IN}marian",
        "--source": f"{IN}source.txt",
        "--target": f"{IN}target.txt",
    },
    ("predict",): {"folder": f"{IN}clf", "texts": f"{IN}train.csv"},
    ("evaluate",): {"folder": f"{IN}clf", "file": f"{IN}train.csv"},
    ("search", "find"): {"index": f"{IN}index", "queries": f"{IN}source.txt"},
    ("duplicates",): {"file": f"{IN}train.csv", "--against": f"{IN}dev.csv"},
    ("topics",): {"model": f"{IN}bert", "texts": f"{IN}train.csv", "--count": "3"},
    ("label",): {"folder": f"{IN}best", "--unlabelled": f"{IN}corpus.txt", "-n": "3"},
    ("merge",): {"output": "out.jsonl", "--parts": f"{IN}parts"},
    ("fill",): {"folder": f"{IN}bert", "texts": "red1 [MASK] 9"},
    ("export",): {"folder": f"{IN}clf", "--to": "torch"},
    ("convert",): {"checkpoint": f"{IN}google"},
    ("quantize",): {"folder": f"{IN}clf"},
    ("push",): {"folder": f"{IN}clf", "name": "org/name"},
    # An address of nobody: a server that listens would not end.
    ("serve",): {"folders": f"{IN}bert", "--host": "203.0.113.7"},
    ("runs",): {"folder": f"{IN}run"},
    ("trace",): {"folder": f"{IN}bert", "text": "red1 red2"},
    ("explain",): {"folder": f"{IN}clf", "texts": "red1 red2"},
    ("faithfulness",): {"folder": f"{IN}clf", "file": f"{IN}train.csv", "--rows": "3"},
    ("heads",): {"folder": f"{IN}clf", "file": f"{IN}train.csv", "--prune": "0.5"},
    ("drift",): {"folder": f"{IN}clf", "file": f"{IN}train.csv"},
    ("errors",): {"folder": f"{IN}clf", "file": f"{IN}train.csv"},
    ("audit",): {"folder": f"{IN}clf", "--train": f"{IN}train.csv", "--held-out": f"{IN}dev.csv"},
    ("relevance",): {"folder": f"{IN}image", "images": f"{IN}seven.png"},
}
# What a command writes, where it is not a folder "out".
_OUTPUT: dict[Names, tuple[str, str]] = {
    ("translate", "use"): ("-o", "out.txt"),
    ("predict",): ("-o", "out.jsonl"),
    ("evaluate",): ("-o", "out.json"),
    ("embed",): ("-o", "out.npy"),
    ("search", "find"): ("-o", "out.jsonl"),
    ("duplicates",): ("-o", "out.csv"),
    ("topics",): ("-o", "out.jsonl"),
    ("score",): ("-o", "out.jsonl"),
    ("label",): ("-o", "out.csv"),
    ("trace",): ("--html", "out.html"),
    ("audit",): ("-o", "out.json"),
    ("explain",): ("--html", "out.html"),
    ("faithfulness",): ("-o", "out.png"),
    ("relevance",): ("-o", "out.png"),
}
# matplotlib draws what these write.
PLOTS = {("faithfulness",), ("relevance",), ("runs",)}


def _line(path: Names, **changed: str) -> tuple[str, ...]:
    """The command line of ``path`` without its output."""
    return tuple(command_line(path, changed, output=False))


def command_line(
    path: Names, changed: dict[str, Any] | None = None, *, output: bool = True
) -> list[Any]:
    """The valid command line with some options and arguments replaced.

    Args:
        path: the names of the command.
        changed: by option or name of the argument; None leaves it out.
        output: whether to write something.
    """
    given = dict(BASE[path])
    if output and (written := OUTPUT[path]) is not None:
        given[written[0]] = written[1]
    for name, value in (changed or {}).items():
        option = next((n for n in spellings(path, name) if n in given), name)
        given[option] = value
    names = path if path != ("translate", "use") else ("translate",)
    arguments = [p.name for p in command(path).params if p.param_type_name == "argument"]
    line: list[Any] = [*names]
    for name in (*arguments, *(n for n in given if n.startswith("-"))):
        value = given.get(name)
        if value is None:
            continue
        values = value if isinstance(value, tuple) else (value,)
        line += values if not name.startswith("-") else [part for v in values for part in (name, v)]
    return line


def command(path: Names) -> Any:
    return every_command()[path]


def _usual(path: Names) -> dict[str, Any]:
    """The arguments and options of a command without an entry in ``_OTHERS``."""
    if path[0] == "finetune":
        return {**_BERT, **_CLASSES}
    names = [p.name for p in command(path).params if p.param_type_name == "argument"]
    return {name: _ARGUMENTS[name] for name in names if name in _ARGUMENTS}


def _written(path: Names) -> tuple[str, str] | None:
    """The option and name of what a command writes; None: it prints."""
    writes = any("-o" in parameter.opts for parameter in command(path).params)
    return _OUTPUT.get(path, ("-o", "out") if writes else None)


OUTPUT = {path: _written(path) for path in every_command()}
BASE = {path: _OTHERS.get(path) or _usual(path) for path in every_command()}


def spellings(path: Names, name: str) -> list[str]:
    """The names of the option that ``name`` is one of."""
    for parameter in command(path).params:
        if name in parameter.opts:
            return list(parameter.opts)
    return [name]


def kind(parameter: Any) -> str:
    """What an option or argument takes: number, path, flag or text."""
    described = getattr(parameter, "type_descriptor", None)
    found = str(described.annotation if described is not None else parameter.type).lower()
    if getattr(parameter, "is_flag", False):
        return "flag"
    if "int" in found or "float" in found:
        return "number"
    return "path" if "path" in found else "text"


# Folders of models that commands make out of the other inputs.
TRAINED: dict[str, tuple[str, ...]] = {
    "clf": _line(("finetune", "classify")),
    "labels": _line(("finetune", "multilabel")),
    "ratings": _line(("finetune", "regress")),
    "reader": _line(("finetune", "answer")),
    "chooser": _line(("finetune", "choose")),
    "vectors": _line(("finetune", "embed")),
    "tagger": _line(("finetune", "tag")),
    "image": _line(("finetune", "image")),
    "marian": _line(("translate", "train")),
    "best": _line(("fit",)),
    "probe": _line(("probe",)),
    "index": _line(("search", "build")),
    "several": (*_line(("finetune", "classify")), "--seeds", "2"),
    "run": _line(("pretrain",)),
}
