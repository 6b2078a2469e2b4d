"""Options of fine-tuning that depend on the task; columns mean something else in each."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ownbert.cli.options import DATA, LEARNING, MODEL, RUN

ANSWERS = "Answers"

Measure = Annotated[
    str | None,
    typer.Option(
        help="What is watched on dev rows: one of the task's measures, or loss.",
        show_default="the task's first",
        rich_help_panel=RUN,
    ),
]
Folds = Annotated[
    int | None,
    typer.Option(
        help="Train so many models, each without another part of the rows; their answers are "
        "averaged.",
        rich_help_panel=RUN,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="Train with so many seeds: mean and spread; their answers are averaged.",
        rich_help_panel=RUN,
    ),
]
LabelsPerClass = Annotated[
    int | None,
    typer.Option(
        help="Learn from so many texts of each label, drawn by --seed.",
        show_default="all",
        rich_help_panel=DATA,
    ),
]
RDrop = Annotated[
    float | None,
    typer.Option(
        help="Weight of the difference between two passes with other dropouts (R-Drop); try 1.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
Pooling = Annotated[
    str | None,
    typer.Option(
        help="What the answer stands on: pooler (BERT's), first, mean, max, attention, gru, lstm.",
        show_default="the family's",
        rich_help_panel=MODEL,
    ),
]
Long = Annotated[
    str | None,
    typer.Option(
        help="Documents beyond --max-length: cut; windows (answers averaged); segments "
        "(attention over their vectors).",
        show_default="cut",
        rich_help_panel=DATA,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        help="Tokens that neighbouring windows share.", show_default="32", rich_help_panel=DATA
    ),
]
ClassWeights = Annotated[
    str | None,
    typer.Option(
        help='"balanced" (rare labels count more), or label=weight,label=weight.',
        show_default="all alike",
        rich_help_panel=LEARNING,
    ),
]
LabelSmoothing = Annotated[
    float | None,
    typer.Option(
        help="Share of the truth that is spread over all labels.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        help="What stands between the labels of a row (lists need none).",
        show_default="the first of | ; , that the training rows have",
        rich_help_panel=DATA,
    ),
]
LabelThreshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="From which probability on a label holds.",
        show_default="what is best on dev rows, or 0.5",
        rich_help_panel=ANSWERS,
    ),
]
RegressionLoss = Annotated[
    str | None,
    typer.Option(
        help="mse, or huber (rows that are far off count less).",
        show_default="mse",
        rich_help_panel=LEARNING,
    ),
]
AnswerLength = Annotated[
    int | None,
    typer.Option(help="Longest answer, in tokens.", show_default="30", rich_help_panel=ANSWERS),
]
AnswerThreshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help='By how much "no answer" must be ahead of an answer (logits) to be said.',
        show_default="what is best on dev rows, or 0",
        rich_help_panel=ANSWERS,
    ),
]
EmbedPooling = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        help="What the vector of a text is: mean or max over its tokens, or the first one.",
        show_default="mean",
        rich_help_panel=MODEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Of texts that belong together: a lower one looks harder at the nearest others.",
        show_default="0.05",
        rich_help_panel=LEARNING,
    ),
]
TagStride = Annotated[
    int | None,
    typer.Option(
        "--stride",
        help="Words that neighbouring windows of a long sentence share.",
        show_default="32",
        rich_help_panel=DATA,
    ),
]
Crf = Annotated[
    bool | None,
    typer.Option(
        "--crf",
        help="Learn which tags follow each other, and choose those of a sentence together.",
        rich_help_panel=MODEL,
    ),
]
TagAll = Annotated[
    bool | None,
    typer.Option(
        "--tag-all",
        help="Learn from all pieces of a word, not from the first alone.",
        rich_help_panel=LEARNING,
    ),
]


def _column(option: str, text: str, usual: str) -> Any:
    """An option that names a column; ``usual``: what is taken where it is not given."""
    return Annotated[
        str | None, typer.Option(option, help=text, show_default=usual, rich_help_panel=DATA)
    ]


_TEXT, _SECOND, _LABEL = "--text-column", "--second-column", "--label-column"
# As in data.tables, which would take the time of a --help to load.
_TEXTS = (
    "that of a pair (see --second-column), else the first of text, texts, content, contents, "
    "document, doc, sentence, sentences, body, review, comment, message, abstract, description, "
    "utterance, query, question, headline, title, tokens, words, ids; else the only one left"
)
_LABELS = (
    "label, labels, class, category, target, topic, intent, sentiment, tag, y, label_id, "
    "class_name, coarse_label; else the only one left"
)
# As in tasks.rows.
_PAIRS = (
    "sentence1 and sentence2 (also sentence_1, sentence_a), text1 and text2 (text_1, text_a), s1 "
    "and s2, question1 and question2, premise and hypothesis, query and passage, query and "
    "document, anchor and positive"
)
_SENTENCE: Mapping[str, Any] = {
    "text_column": _column(
        _TEXT, "Column of the texts; where there are two a row, of the first.", _TEXTS
    ),
    "second_column": _column(
        _SECOND,
        "Column of the second texts, where there are two a row.",
        f"none, but where no column of texts is named and the file has {_PAIRS}",
    ),
}
_PAIR: Mapping[str, Any] = {
    "text_column": _column(
        _TEXT, "Column of the first texts: queries, anchors.", f"the first of a pair: {_PAIRS}"
    ),
    "second_column": _column(
        _SECOND,
        "Column of the second texts, which belong to the first or are compared with them.",
        "the second of the pair",
    ),
    "label_column": _column(
        _LABEL,
        "Column of the scores, numbers that say how alike the two texts are.",
        "the first of score, similarity, similarity_score, relatedness, relatedness_score, "
        "sim, gold_score, label, is_duplicate; none if there is no such column",
    ),
}

# What the options of columns mean, by task. One that is None is not there.
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "classify": {
        **_SENTENCE,
        "label_column": _column(_LABEL, "Column of the labels.", f"the first of {_LABELS}"),
    },
    "multilabel": {
        **_SENTENCE,
        "label_column": _column(
            _LABEL,
            "Column of the labels; a cell holds all those of a text.",
            f"the first of {_LABELS}",
        ),
    },
    "regress": {
        **_SENTENCE,
        "label_column": _column(
            _LABEL,
            "Column of the numbers, or several columns with commas between them.",
            f"the first of score, rating, value, {_LABELS}",
        ),
    },
    "answer": {
        "text_column": _column(
            _TEXT, "Column of the questions, in a table.", "the first of question, query"
        ),
        "second_column": _column(
            _SECOND,
            "Column of the texts that hold the answers, in a table.",
            "the first of context, passage, paragraph, document, text",
        ),
        "label_column": _column(
            _LABEL,
            "Column of the answers, in a table.",
            "the first of answers, answer, answer_text, label; and answer_start or start for "
            "where they begin",
        ),
    },
    "choose": {
        "text_column": _column(
            _TEXT,
            "Column of the prompts.",
            "the first of prompt, premise, question, context, startphrase, sentence, sent1, text, "
            "stem",
        ),
        "second_column": _column(
            _SECOND,
            "Column of the lists of choices; or, with a column a choice, what stands before the "
            "numbers or letters in their names.",
            "the first of choices, options, endings, candidates, answers (lists; not in csv and "
            "tsv), or of ending, choice, option, answer, candidate (before numbers or letters)",
        ),
        "label_column": _column(
            _LABEL,
            "Column of the right choices: numbers, letters or texts.",
            "the first of label, answer, answerkey, answer_key, correct, gold, target",
        ),
    },
    "embed": _PAIR,
    "rank": _PAIR,
    "tag": {
        "text_column": _column(
            _TEXT,
            "Column of the words; in CoNLL files its number, from 1.",
            "the first of tokens, words, then text, sentence and so on; in CoNLL the first one",
        ),
        "second_column": None,
        "label_column": _column(
            _LABEL,
            "Column of the tags; in CoNLL files its number, from 1.",
            "the first of tags, labels, ner_tags, then label, tag and so on; in CoNLL the last one",
        ),
    },
}
