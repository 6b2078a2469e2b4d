"""The tasks: what is known of each before its class is imported."""

from dataclasses import dataclass
from typing import Any

from ownbert.exceptions import InputError
from ownbert.tables.columns import COLUMNS, ColumnSpec

# Settings of tasks that read single sentences or pairs.
SENTENCE_SETTINGS = (
    *("feature_columns", "feature_size", "pooling", "ngrams", "long", "stride", "rdrop"),
    *("mask_rate", "head_init", "baseline", "skip_unlabelled"),
)


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What is known of a task without its class, which takes long to import."""

    task: str  # its module and its class
    help: str  # text of its command
    settings: tuple[str, ...]  # its settings in ``FinetuneRecipe``, in the order of --help
    without: tuple[str, ...] = ()  # settings of other tasks that do not apply
    columns: tuple[ColumnSpec, ...] = ()  # columns of its files
    pipeline: str = "text-classification"  # in Transformers' pipelines and on the hub
    head: str | None = None  # kind of head that identifies a folder without a saved task
    example: tuple[Any, ...] = ("a text",)  # inputs of a request to the server
    files: tuple[str, ...] = ()  # files that it writes beside the model
    alias: str = ""  # second name of its command
    linear: bool = False  # whether linear models and blends support it, as ``fit`` does


# All tasks by their names, in the order of --help.
KINDS: dict[str, TaskKind] = {
    "classify": TaskKind(
        task="ownbert.tasks.classification:ClassificationTask",
        help="""One label per text or pair of texts: topics, sentiment, intents, inference.

        csv, tsv, jsonl or parquet with one or two text columns and a label column.

        Example: ownbert finetune classify --model runs/bert --train train.csv --dev dev.csv
        -o runs/classifier""",
        settings=(
            *("labels_per_class", "label_names", "positive", "threshold", "class_weights"),
            *("label_smoothing", *SENTENCE_SETTINGS),
        ),
        columns=COLUMNS["classify"],
        linear=True,
        example=("a text", {"text": "a text", "text_pair": "its pair"}),
    ),
    "multilabel": TaskKind(
        task="ownbert.tasks.multilabel:MultiLabelTask",
        help="""Any number of labels per text or pair of texts: keywords, subjects, types of abuse.

        csv, tsv, jsonl or parquet with one or two text columns and a label column: "war|trade",
        a list, or a vector of 0 and 1. An empty cell means no labels.

        Example: ownbert finetune multilabel --model runs/bert --train train.csv --dev dev.csv
        -o runs/labels""",
        settings=("separator", "label_names", "threshold", "class_weights", *SENTENCE_SETTINGS),
        columns=COLUMNS["multilabel"],
        linear=True,
    ),
    "regress": TaskKind(
        task="ownbert.tasks.regression:RegressionTask",
        help="""A number per text or pair of texts: ratings, similarity, readability.

        csv, tsv, jsonl or parquet with one or two text columns and a column of numbers; for
        several numbers per row, name their columns: --label-column joy,anger.

        Example: ownbert finetune regress --model runs/bert --train train.csv --dev dev.csv
        -o runs/ratings""",
        settings=("loss", *SENTENCE_SETTINGS),
        columns=COLUMNS["regress"],
        linear=True,
    ),
    "answer": TaskKind(
        task="ownbert.tasks.answer:QuestionAnsweringTask",
        help="""Questions answered by a span of a text: SQuAD, CMRC and similar.

        SQuAD JSON (version 1.1 or 2.0), or csv, tsv, jsonl or parquet with the columns
        question, context and answers. Long texts are read in windows.

        Example: ownbert finetune answer --model runs/bert --train train.json.gz --dev dev.json.gz
        -o runs/reader""",
        settings=("answer_length", "threshold", "stride", "rdrop", "mask_rate"),
        columns=COLUMNS["answer"],
        head="span",
        example=({"question": "Who?", "context": "Anna lives in Rome."},),
        pipeline="question-answering",
    ),
    "choose": TaskKind(
        task="ownbert.tasks.multiple_choice:MultipleChoiceTask",
        help="""One of several choices for a prompt: story endings, exam questions.

        jsonl or parquet with the columns prompt, choices (a list) and label; or csv or tsv with
        one column per choice (choice0, choice1, ...). Labels are numbers, letters or the text
        of the correct choice.

        Example: ownbert finetune choose --model runs/bert --train train.tsv --dev dev.tsv
        -o runs/chooser""",
        settings=("pooling", "rdrop", "mask_rate"),
        columns=COLUMNS["choose"],
        head="choice",
        example=({"prompt": "a beginning", "choices": ["one ending", "another"]},),
        pipeline="multiple-choice",
    ),
    "embed": TaskKind(
        task="ownbert.tasks.embed:EmbeddingTask",
        help="""Text vectors for search and comparison, trained on pairs of texts (alias: rank).

        csv, tsv, jsonl or parquet with two columns of matching texts (query and document, anchor
        and positive, ...) and optionally one of non-matching texts (negative, hard_negative or
        neg); or with two texts and a score. From single texts (txt, a folder, or a table with one
        text column), pairs are generated: two pieces of a text, two consecutive lines, or a short
        text with itself. Compute vectors with ownbert embed or with sentence-transformers.

        Example: ownbert finetune embed --model runs/bert --train pairs.csv --dev dev.csv
        -o runs/vectors""",
        settings=("pooling", "temperature", "baseline"),
        alias="rank",
        columns=COLUMNS["embed"],
        files=("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
        example=("a text", "another one"),
        pipeline="sentence-similarity",
    ),
    "image": TaskKind(
        task="ownbert.vision.image_task:ImageTask",
        help="""One label per image, with a ViT: a new one or one from a folder.

        A folder with one subfolder of images per class (requires the extra vision), IDX files
        as in MNIST, or an .npz file with the arrays images and labels. Each time a training
        image is used, it is randomly shifted and, with --flip, mirrored.

        Example: ownbert finetune image --train images/train --dev images/dev
        -o runs/images""",
        settings=(
            *("labels_per_class", "positive", "threshold", "image_size", "patch", "hidden_size"),
            *("layers", "heads", "flip", "shift", "crop", "class_weights", "label_smoothing"),
        ),
        without=(
            *("text_column", "second_column", "label_column", "group", "time_column", "encoding"),
            *("max_length", "pretrain_steps", "adversarial", "layer_gate", "attention_blur"),
        ),
        files=("preprocessor_config.json",),
        example=("the bytes of an image in base64",),
        pipeline="image-classification",
    ),
    "tag": TaskKind(
        task="ownbert.tasks.tag:TaggingTask",
        help="""A tag per word: names of people and places, parts of speech, chunks.

        CoNLL columns (a word and its tag per line, a blank line between sentences;
        --text-column 1 --label-column 4 selects other columns; in CoNLL-U files, FORM and UPOS
        are read by default), or jsonl, parquet or csv with a column of words and one of tags:
        lists, or strings separated by spaces. Entity tags are O, B-x, I-x, or IOBES, BILOU, BMES.

        Example: ownbert finetune tag --model runs/bert --train train.conll --dev dev.conll --crf
        -o runs/names""",
        settings=(
            *("feature_columns", "feature_size", "crf", "tag_all", "label_smoothing"),
            *("stride", "rdrop", "mask_rate"),
        ),
        without=("second_column",),
        columns=COLUMNS["tag"],
        head="tokens",
        example=("Anna lives in Rome",),
        pipeline="token-classification",
    ),
}


def task_files() -> tuple[str, ...]:
    """Files that tasks write beside the model."""
    return tuple(name for kind in KINDS.values() for name in kind.files)


def task_kind(name: str) -> tuple[str, TaskKind]:
    """The name and the facts of a task, by its name or alias."""
    aliases = {kind.alias: task for task, kind in KINDS.items() if kind.alias}
    if (task := aliases.get(name, name)) not in KINDS:
        raise InputError(
            "task {name!r} is not known; use one of {kinds}", name, ", ".join([*KINDS, *aliases])
        )
    return task, KINDS[task]
