"""The metrics that evaluators of sentence-transformers leave on a model."""

from collections.abc import Mapping
from typing import Any


class Evaluations(dict[str, dict[str, float]]):
    """Metrics by evaluator, in place of the model card of sentence-transformers."""

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, float], *_: Any, **__: Any
    ) -> None:
        """Called by an evaluator with its metrics, and its epoch and step."""
        name = getattr(evaluator, "name", "") or type(evaluator).__name__
        self[name] = dict(metrics)
