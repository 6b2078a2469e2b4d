"""Display names of fine-tuning metrics."""

# Metrics whose best value is 1, which share an axis in plots.
UP_TO_ONE = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "weighted_f1": "weighted F1",
    "f1": "F1",
    "exact_match": "exact match",
    "mcc": "Matthews' correlation",
    "average_precision": "average precision",
    "roc_auc": "ROC AUC",
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
    "interval_coverage": "coverage of the intervals",
    "set_coverage": "coverage of the sets",
    "refused": "unknown",
    "answered_accuracy": "accuracy on answered texts",
    "unknown_refused": "unknown of those out of scope",
    "unknown_auroc": "AUROC of unknown texts",
    "unknown_auroc_of_probability": "using only the highest probability",
}
_OTHERS = {
    "interval_width": "width of the intervals",
    "set_size": "labels in a set",
    "mae": "mean absolute error",
    "loss": "loss",
    "log_loss": "log loss",
}
# Metrics whose lowest value is best.
LOWER = ("loss", "log_loss", "mae")
# Metrics in which all labels count equally.
BALANCED = ("macro_f1", "mcc")


def shown_name(metric: str) -> str:
    return (UP_TO_ONE | _OTHERS).get(metric, metric.replace("_", " "))


def shown_value(metric: str, value: float) -> str:
    """Format a value for display: accuracies in per cent."""
    return f"{value:.1%}" if metric.endswith("accuracy") else decimals(value)


def shown_label_metric(value: float, rows: int) -> str:
    """Precision, recall or F1 of a label for display: a dash if no row has the label."""
    return f"{value:.3f}" if rows else "–"


def decimals(value: float, places: int = 3, sign: str = "") -> str:
    """Format a number with ``places`` decimals, and zero without a minus sign; ``sign``: + to show
    the sign of positive numbers too."""
    text = f"{value:{sign}.{places}f}"
    return text.replace("-", sign) if float(text) == 0 else text
