"""Options that name a column, by task; columns mean something else in each."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ownbert.train.recipe import DATA


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
