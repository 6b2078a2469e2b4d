"""Measures of fine-tuning by the names that people know them by."""

# At most 1, which is best; drawn on one axis.
UP_TO_ONE = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "f1": "F1",
    "exact_match": "exact match",
    "mcc": "Matthews' correlation",
    "average_precision": "average precision",
    "subset_accuracy": "subset accuracy",
    "precision": "precision",
    "recall": "recall",
    "token_accuracy": "token accuracy",
    "has_answer_f1": "F1 of answers",
    "no_answer_accuracy": "accuracy of no answer",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "r2": "R2",
    "recall_at_1": "recall at 1",
    "recall_at_5": "recall at 5",
    "recall_at_10": "recall at 10",
    "mrr": "MRR",
}
_OTHERS = {"mae": "mean absolute error", "loss": "loss"}
# Less is better.
LOWER = ("loss", "mae")


def shown_name(measure: str) -> str:
    """As people write it."""
    return (UP_TO_ONE | _OTHERS).get(measure, measure.replace("_", " "))


def figure(measure: str, value: float) -> str:
    """A value as people write it: shares of right answers in per cent."""
    return f"{value:.1%}" if measure.endswith("accuracy") else f"{value:.3f}"
