"""scikit-learn estimators with ``fit`` and ``predict`` on texts in memory."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from ownbert.checkpoint import CONFIG, save
from ownbert.corpus.learn_vocabulary import learn_vocabulary
from ownbert.corpus.store import prepare
from ownbert.exceptions import InputError, explaining_memory, needing
from ownbert.files.input_files import refuse_same
from ownbert.finetuning.arrays import (
    column_names,
    labels_of,
    name_of,
    numbers_of,
    rows_of,
    texts_of,
)
from ownbert.finetuning.finetune import recipe_options
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.hub import model_folder
from ownbert.inference.engines import Compute
from ownbert.inference.finished_files import copy_files, finished_files
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Opened, decide_all
from ownbert.nn.default_dtype import in_float32
from ownbert.pretraining.pretrain_recipe import LONG
from ownbert.pretraining.pretraining_run import pretrain
from ownbert.run.file_names import BLEND, ENSEMBLE
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.related_rows import clusters_of, row_key
from ownbert.tasks.rows import Row
from ownbert.tasks.task import NoTaskHead, Task
from ownbert.train.loop import Interrupted
from ownbert.views.tokens import text_kind

# Types of labels that a folder keeps, by NumPy's kinds of dtypes; other labels are texts there.
_LABEL_TYPES = {"b": "bool", "i": "int", "u": "int", "f": "float"}
# With 3,000 questions of banking77 on one core, 100 steps take 7 seconds and raise the accuracy
# from .65 to .80; 400 steps take a minute longer and give .83. TF-IDF gives .74.
_STEPS, _TOKENS = 100, 2048
_FEW = 100
with needing("this needs scikit-learn: pip install 'ownbert[eval]'"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d


# scikit-learn requires that __init__ only stores the parameters, as that of a dataclass does.
@dataclass(eq=False, repr=False)
class TextEstimator(BaseEstimator):
    """A model that is fine-tuned by ``fit`` and kept in memory.

    X is a list, an array or a Series of texts. A text may also be a list of words, which are joined
    by spaces. Pairs of texts are tuples of two, or an array (texts, 2).

    Predictions are in float32, so that they do not depend on the batch.

    Args:
        model: folder to start from; None: a small network that ``fit`` pretrains on the texts
            themselves.
        epochs, learning_rate, batch_size: by default chosen by the number of texts and the size of
            the model.
        max_length: maximum tokens of a text, in ``fit`` and for predictions; by default the number
            of the model's positions.
        seed: seed of the random generators.
        pooling, long, precision, device: see the settings of ``ownbert finetune``.
        dev_share: share of the texts to hold out for choosing the best weights. With 0 all epochs
            are run and the last weights are kept.
        patience: number of evaluations without a better held-out score after which training stops;
            with ``epochs`` there is one per epoch, otherwise fewer if there are very few texts.
        output: new folder for model, recipe, log and curves; by default nothing is kept on disk.
        verbose: whether to show progress.
        random_state: alternative to ``seed``, as in scikit-learn: a number or a generator.

    Attributes:
        feature_names_in_: names of the columns of X in ``fit``, if X was a data frame with names;
            later data frames must have the same, in this order.
    """

    model: str | Path | None = None
    _: KW_ONLY
    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    max_length: int | None = None
    seed: int = 0
    pooling: str | None = None
    long: str = "auto"
    dev_share: float = 0.0
    patience: int = 4
    precision: str = "auto"
    device: str = "auto"
    output: str | Path | None = None
    verbose: bool = False
    random_state: Any = None

    # The corresponding task of ``ownbert finetune``.
    task_name: ClassVar[str]

    @classmethod
    def from_pretrained(cls, folder: str | Path, **parameters: Any) -> Any:
        """Create a fitted estimator from a folder written by ``finetune`` or ``fit``.

        If the folder contains a blend or an ensemble, this is used for predictions.

        Args:
            folder: model folder; ``fit`` starts from it.
            parameters: parameters of the estimator.

        Raises:
            InputError: the folder was trained for another task.
        """
        estimator = cls(folder, **parameters)
        estimator._open()
        return estimator

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the fitted model as an ordinary Hugging Face folder.

        It can be used by ``ownbert predict`` and Transformers. Its labels are the classes as text;
        ``from_pretrained`` restores the type of numbers. A blend or an ensemble is copied.
        """
        self._require_fitted()
        if not hasattr(self, "folder_"):
            save(self.model_, folder, tokenizer=self.tokenizer_, values=self.task_.values())
            return
        refuse_same(self.folder_, folder)
        copy_files(Path(self.folder_), Path(folder), finished_files(Path(self.folder_)))

    load, save = from_pretrained, save_pretrained

    @in_float32
    def _open(self) -> None:
        """Fit the estimator by opening the folder of ``model``."""
        assert self.model is not None
        folder = model_folder(self.model)
        several = any((folder / name).exists() for name in (BLEND, ENSEMBLE))
        opened = open_folder(folder, Compute(self.device if several else "cpu", packed=several))
        task: Any = opened.task
        if task.name != self.task_name:
            raise InputError(
                "{model} was trained for {name}, but {kind} is for {task_name}",
                self.model,
                task.name,
                type(self).__name__,
                self.task_name,
            )
        self._texts = 2 if task.pair else 1
        self._set_attributes(task)
        if several or not opened.models:  # an exported file
            self.folder_ = str(folder.resolve())
        self._use_folder(opened)

    def _use_folder(self, opened: Opened) -> None:
        """Use a folder for predictions."""
        self._opened, self.task_, self.tokenizer_ = opened, opened.task, opened.tokenizer
        if not hasattr(self, "folder_"):
            (self.model_,) = opened.models
        self._answers()  # now, because ``predict`` must not modify the estimator

    def _set_attributes(self, task: Task) -> None:
        """Set the attributes that ``fit`` sets besides the model, from the folder's task."""
        raise NotImplementedError

    def _require_fitted(self) -> None:
        """Raise ``NotFittedError`` unless ``fit`` was called or ``model`` is a finished folder."""
        if hasattr(self, "_texts"):
            return
        if self.model and Path(self.model).is_dir():
            with contextlib.suppress(NoTaskHead):
                self._open()
        check_is_fitted(self, "_texts")

    def _finetune(
        self,
        task: str,
        rows: Sequence[Row],
        *,
        classes: np.ndarray | None = None,
        labels: Sequence[str] = (),
        **own: Any,
    ) -> None:
        """Fine-tune on rows, and load the model from the written folder.

        The held-out texts are stratified by ``classes`` (texts); ``labels`` are the columns of a
        regression, and ``own`` settings override parameters.
        """
        options = self.get_params(deep=False) | own
        for name in ("dev_share", "output", "verbose", "random_state", "class_weight"):
            options.pop(name, None)
        seed = self.seed
        if isinstance(self.random_state, Integral):
            seed = int(self.random_state)
        elif self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31))
        options["seed"] = seed
        plain = {name: _plain(value) for name, value in options.items()}
        recipe = resolve(FinetuneRecipe, options=recipe_options(task, plain))
        parts = self._split(rows, classes, seed)
        with self._folder() as folder, self._start(recipe, rows) as model:
            recipe = replace(recipe, model=replace(recipe.model, folder=str(model)))
            run = FinetuningRun(recipe, parts, labels=labels, with_card=self.output is not None)
            if classes is not None:
                vars(run.task)["label_type"] = _LABEL_TYPES.get(classes.dtype.kind)
            with explaining_memory(lambda: run.sizes):
                run.train(folder, quiet=not self.verbose)
            for name in ("_ready", "folder_"):
                vars(self).pop(name, None)
            self._use_folder(open_folder(folder.path, Compute("cpu", packed=False)))
        self._texts = len(rows[0].texts)

    @contextlib.contextmanager
    def _start(self, recipe: FinetuneRecipe, rows: Sequence[Row]) -> Iterator[str | Path]:
        """Yield the folder to start from."""
        if self.model:
            yield self.model
            return
        with TemporaryDirectory(prefix="ownbert-") as name:
            yield network_of([text for row in rows for text in row.texts], Path(name), recipe)

    def _split(
        self, rows: Sequence[Row], classes: np.ndarray | None, seed: int
    ) -> tuple[Sequence[Row], Sequence[Row] | None]:
        if not 0 <= self.dev_share < 1:
            raise InputError("dev_share is {dev_share}; it must be in [0, 1)", self.dev_share)
        if not self.dev_share:
            return rows, None
        share = float(self.dev_share)
        # Copies of a text are on the same side.
        clusters = clusters_of([[key] if any(key) else [] for key in map(row_key, rows)])
        if clusters.max() == 0:
            clusters = np.arange(len(rows))
        _, first = np.unique(clusters, return_index=True)
        stratified = True
        if classes is not None:
            classes = np.unique(classes, return_inverse=True)[1][first]
            # scikit-learn needs two texts per class, and as many texts as classes on both sides.
            counts, dev_size = np.bincount(classes), math.ceil(share * len(first))
            smaller = min(dev_size, len(first) - dev_size)
            stratified = counts.min() >= 2 and smaller >= len(counts)
        if classes is None or stratified:
            options: Any = {"test_size": share, "random_state": seed, "stratify": classes}
            train, dev = train_test_split(np.arange(len(first)), **options)
        else:
            held_out = _held_out(classes, math.ceil(share * len(first)), seed)
            if not held_out:
                raise InputError(
                    "dev_share is {dev_share}, but every class has only one text: none can be "
                    "held out",
                    self.dev_share,
                )
            train, dev = np.setdiff1d(np.arange(len(first)), sorted(held_out)), sorted(held_out)
        members: list[list[Row]] = [[] for _ in first]
        for row, cluster in zip(rows, clusters.tolist(), strict=True):
            members[cluster].append(row)
        train_rows, dev_rows = ([row for i in part for row in members[i]] for part in (train, dev))
        return train_rows, dev_rows

    @contextlib.contextmanager
    def _folder(self) -> Iterator[FinetuneFolder]:
        """Yield the folder to train in."""
        if self.output is not None:
            if (Path(self.output) / CONFIG).exists():
                raise InputError(
                    "output: {output} already contains a model; each fit needs a new folder, "
                    "and so does each one of a search: leave output out, then call "
                    "save_pretrained",
                    self.output,
                )
            yield FinetuneFolder(self.output)
            return
        with TemporaryDirectory(prefix="ownbert-") as name:
            try:
                yield FinetuneFolder(name)
            except Interrupted:  # Its message names a state that has been removed.
                raise KeyboardInterrupt from None

    def _note_columns(self, X: Any) -> None:
        """Set ``feature_names_in_``, or remove that of an earlier ``fit``."""
        vars(self).pop("feature_names_in_", None)
        if (names := column_names(X)) is not None:
            self.feature_names_in_ = names

    def _predictions(self, X: Any) -> np.ndarray:
        """The task's raw output for each text, (texts, ...)."""
        self._require_fitted()
        names, fitted = column_names(X), getattr(self, "feature_names_in_", None)
        if names is not None and fitted is not None and list(names) != list(fitted):
            raise InputError(
                "X has the columns {names}; it must have those of fit in their order: {fitted}",
                ", ".join(names),
                ", ".join(fitted),
            )
        texts = texts_of(X, least=0)
        rows = rows_of(texts, [None] * len(texts))
        if not rows:
            return np.zeros((0, len(self.task_.labels)))
        if len(rows[0].texts) != self._texts:
            wanted = "one text" if self._texts == 1 else "a pair of texts"
            raise InputError("X[0] must be {value}, as in fit", wanted)
        return np.asarray(decide_all(self._answers(), rows))

    def _answers(self) -> Opened:
        """The opened model with packed matrices on the device, created once."""
        if not hasattr(self, "_ready"):
            self._ready = self._opened.packed(self.device)
        return self._ready

    def __getstate__(self) -> dict[str, Any]:
        # Packed matrices would double the size of a pickle; they are created again.
        return {k: v for k, v in super().__getstate__().items() if k != "_ready"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _held_out(classes: np.ndarray, count: int, seed: int) -> set[int]:
    """Sample up to ``count`` texts, so that each class keeps at least one for training."""
    remaining, held_out = np.bincount(classes), set[int]()
    for i in np.random.default_rng(seed).permutation(len(classes)).tolist():
        if len(held_out) < count and remaining[classes[i]] > 1:
            held_out.add(i)
            remaining[classes[i]] -= 1
    return held_out


@dataclass(eq=False, repr=False, kw_only=True)
class OwnBertClassifier(ClassifierMixin, TextEstimator):
    """Single-label classification of texts or pairs of texts.

    Parameters that are not listed are those of ``TextEstimator``.

    Args:
        class_weights, class_weight: "balanced", or a mapping from labels to weights, 1 for missing
            labels; two names of the same parameter.
        label_smoothing: probability mass spread over all labels.

    Attributes:
        classes_: labels in the order of the probabilities.
    """

    class_weights: str | Mapping[Any, float] | None = None
    label_smoothing: float = 0.0
    class_weight: str | Mapping[Any, float] | None = None
    task_name = "classify"

    @in_float32
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OwnBertClassifier":
        """Fine-tune on texts and their labels.

        Args:
            X: texts.
            y: labels, all of the same type.
            sample_weight: (texts) relative weights of the loss; None: equal weights.

        Raises:
            InputError: texts or labels cannot be used.
            ValueError: the labels are continuous values.
        """
        texts = texts_of(X)
        values = column_or_1d(labels_of(y), warn=True)
        names = [name_of(value, f"y[{i}]") for i, value in enumerate(values)]
        rows = rows_of(texts, names, sample_weight)
        check_classification_targets(values)
        classes, first = np.unique(values, return_index=True)
        if len(classes) < 2:
            raise InputError("y has one class only, {names!r}; at least two are needed", names[0])
        labels = [names[i] for i in first]
        if repeated := next((name for name in labels if labels.count(name) > 1), None):
            raise InputError("y has two labels that both become {repeated!r} as text", repeated)
        weights = self._weights(dict(zip(classes.tolist(), labels, strict=True)))
        self._finetune("classify", rows, classes=values, class_weights=weights)
        self._note_columns(X)
        self.classes_ = classes
        self._columns = [self.task_.labels.index(name) for name in labels]
        return self

    def _set_attributes(self, task: Task) -> None:
        labels: Any = task.labels
        if (kind := getattr(task, "label_type", None)) == "bool":
            labels = [label == "true" for label in labels]
        elif kind is not None:
            labels = np.asarray(labels, dtype=kind)
        # In sorted order, as scikit-learn's metrics assume, whatever the order of the folder.
        self.classes_, self._columns = np.unique(labels, return_index=True)

    def _weights(self, names: Mapping[Any, str]) -> str:
        """The class weights in the format of a recipe, for classes with ``names``: equal values are
        the same class, as in scikit-learn (1 is 1.0)."""
        if self.class_weights is not None and self.class_weight is not None:
            raise InputError("class_weight and class_weights are both set; use one of them")
        weights = self.class_weights if self.class_weight is None else self.class_weight
        if not isinstance(weights, Mapping):
            return weights or "equal"  # the meaning of None in scikit-learn
        pairs = [
            (names.get(label) or name_of(label, "class_weights"), _plain(weight))
            for label, weight in weights.items()
        ]
        return json.dumps(dict(pairs))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (texts, C), in the order of ``classes_``."""
        probabilities = self._predictions(X)  # first, because it may load the folder
        return probabilities[:, self._columns]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The predicted label of each text, (texts)."""
        probabilities = self.predict_proba(X)
        task: Any = getattr(self, "task_", None)
        if task is not None and task.decision is not None:
            all_labels = np.empty_like(probabilities)
            all_labels[:, self._columns] = probabilities
            probabilities = task.preferences(all_labels)[:, self._columns]
        return self.classes_[probabilities.argmax(1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy on texts and their labels, in any form that ``fit`` takes."""
        return super().score(X, labels_of(y), sample_weight)


@dataclass(eq=False, repr=False, kw_only=True)
class OwnBertRegressor(RegressorMixin, TextEstimator):
    """Regression of one or several values for texts or pairs of texts.

    Predictions are in the units of ``y``. Parameters that are not listed are those of
    ``TextEstimator``.

    Args:
        loss: mse or huber.
    """

    loss: str = "mse"
    task_name = "regress"

    @in_float32
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OwnBertRegressor":
        """Fine-tune on texts and values.

        Args:
            X: texts.
            y: values, (texts) or (texts, columns).
            sample_weight: (texts) relative weights of the loss; None: equal weights.

        Raises:
            InputError: texts or values cannot be used.
        """
        texts, numbers = texts_of(X), numbers_of(y)
        columns = numbers.reshape(len(numbers), -1)
        flat = numbers.ndim == 1
        labels = ["value"] if flat else [f"value_{i}" for i in range(columns.shape[1])]
        rows = rows_of(texts, [*map(tuple, columns.tolist())], sample_weight)
        self._finetune("regress", rows, labels=labels)
        self._note_columns(X)
        self._flat = flat
        return self

    def _set_attributes(self, task: Task) -> None:
        self._flat = len(task.labels) == 1

    def predict(self, X: Any) -> np.ndarray:
        """The predicted values: (texts) or (texts, columns), like y in ``fit``."""
        numbers = self._predictions(X)
        return numbers[:, 0] if self._flat else numbers

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def network_of(texts: Sequence[str], folder: Path, recipe: FinetuneRecipe) -> Path:
    """Learn a vocabulary and pretrain a tiny network; the result is deterministic."""
    network = folder / "network"
    kind = "blank" if text_kind(texts) == "ids" else "wordpiece"
    # With few texts, keep every character.
    least = 1 if len(texts) < _FEW else None
    learn_vocabulary(list(texts), network, kind=kind, min_count=least)
    store = prepare(list(texts), folder / "tokens", tokenizer=network)
    longest = recipe.data.max_length
    pretrain(
        folder / "tokens",
        network,
        size="tiny",
        max_steps=_STEPS,
        max_length=longest,
        batch_tokens=max(longest or LONG, min(_TOKENS, len(store.tokens))),
        precision=recipe.run.precision,
        device=recipe.run.device,
        seed=recipe.seed,
        quiet=True,
        with_card=False,
    )
    return network
