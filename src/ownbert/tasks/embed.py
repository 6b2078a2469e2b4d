"""Sentence embeddings learnt from matching texts or from similarity scores."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ownbert.batches.example import Example
from ownbert.checkpoint import Description
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError, in_short
from ownbert.files.json_files import write_json
from ownbert.files.writing import make_folder
from ownbert.hub import model_folder
from ownbert.tables.columns import LABEL_NAMES, find_columns, numbered_series
from ownbert.tables.tables import Source, columns, kind_of
from ownbert.tasks.embedding_config import (
    POOLINGS,
    EmbeddingConfig,
    read_embedding_config,
    read_pooling,
)
from ownbert.tasks.finetune_recipe import FinetuneModel, FinetuneRecipe
from ownbert.tasks.made_pairs import (
    LINES,
    TWICE,
    MadePairs,
    RecutPieces,
    hold_out,
    make_pairs,
    refuse_ambiguous,
)
from ownbert.tasks.metrics import Scores
from ownbert.tasks.regression import score_regression
from ownbert.tasks.row_network import RowNetwork
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row, read_table
from ownbert.tasks.task import DEFAULT, Task
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder, join

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.objectives.objective import Objective


RETRIEVAL_METRICS = ("mrr", "recall_at_1", "recall_at_5", "recall_at_10")
_CHUNK = 1 << 24  # maximum elements of a cosine matrix
SIMILARITY_METRICS = ("spearman", "pearson")
# For generated pairs: batch size (the other rows are negatives), number of texts to train on in all
# epochs, and minimum and maximum number of epochs; with more epochs similar texts are pushed apart
# (docs/finetuning.md).
_BATCH, _TEXTS, _EPOCHS = 64, 12_000, (2, 12)
# Pooling keys of all versions of sentence-transformers.
_FLAGS = {
    "first": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


def ranks(texts: Sequence[tuple[str, str]], queries: Any, positives: Any) -> np.ndarray:
    """The rank (rows), from 1, of each row's positive among all distinct positives but the query
    and its positives in other rows, by the cosine with the query (unit vectors (rows, D), dense or
    sparse). Ties count against the positive, otherwise constant vectors would get the best rank."""
    places: dict[str, int] = {}
    rows = [places.setdefault(positive, len(places)) for _, positive in texts]
    row_ids = np.asarray(rows)
    _, first_rows = np.unique(row_ids, return_index=True)
    candidates = positives[first_rows]  # (distinct positives, D)
    skipped: dict[str, set[int]] = {}
    for (query, _), place in zip(texts, rows, strict=True):
        skipped.setdefault(query, {places[query]} if query in places else set()).add(place)
    result = np.empty(len(texts), dtype=np.int64)
    step = max(1, _CHUNK // len(first_rows))
    for start in range(0, len(texts), step):
        cosines = queries[start : start + step] @ candidates.T  # (step, candidates)
        if not isinstance(cosines, np.ndarray):
            cosines = cosines.toarray()
        right = cosines[np.arange(len(cosines)), row_ids[start : start + step]]
        before = cosines >= right[:, None]
        for row, (query, _) in enumerate(texts[start : start + step]):
            before[row, list(skipped[query])] = False
        result[start : start + step] = 1 + before.sum(1)
    return result


def retrieval_metrics(ranks: np.ndarray) -> dict[str, float]:
    """Metrics of ranks (rows): mean reciprocal rank, and recall at 1, 5 and 10."""
    recalls = {f"recall_at_{k}": float((ranks <= k).mean()) for k in (1, 5, 10)}
    return {"mrr": float((1 / ranks).mean()), **recalls}


class PairSimilarity(NamedTuple):
    """The cosine similarity of two texts, and their unit vectors (2, D)."""

    cosine: float
    vectors: np.ndarray


class EmbeddingTask(Task):
    """Embeddings whose cosine similarity shows which texts match.

    The columns determine the objective. With scores, the cosine is trained to equal the score,
    scaled to [0, 1] by the minimum and maximum of the training rows. Without scores, the second
    text is trained to be closer to the first than the second texts of other rows and the text in a
    column ``negative``. The folder contains a plain encoder and the files of sentence-transformers;
    the pooling has no weights.
    """

    name = "embed"
    library = "sentence-transformers"
    purpose = "maps texts to vectors that are close for similar texts"
    head = "embedding"
    metrics = RETRIEVAL_METRICS
    unit = "pairs"
    averageable = False
    discrete = False
    needs_full_batch = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # Labels of the base model's folder do not apply.
        self.labels = ()
        self.pooling = self.settings.pooling or "mean"
        if self.pooling not in POOLINGS:
            raise InputError(
                "task.pooling is {pooling!r}; embed supports {poolings}, which have no weights",
                self.pooling,
                ", ".join(POOLINGS),
            )
        self.config = EmbeddingConfig()
        # Minimum and maximum training score, or None without scores.
        self.scale: tuple[float, float] | None = None
        self.learnt = False
        # Statistics of generated pairs, keyed by the source of the texts.
        self.made_from: dict[str, MadePairs] = {}
        self.made: MadePairs | None = None
        self.held_out = 0

    # Reading.

    def read(self, path: Source) -> list[Row]:
        columns = self._columns_of(path)
        if "second" not in columns:
            rows, self.made_from[str(path)] = make_pairs(path, columns)
            return rows
        score, negative = (columns.get(role, ()) for role in ("label", "negative"))
        if score and negative:
            raise InputError(
                "{path} has both a column of scores, {score!r}, and one of non-matching texts, "
                "{negative!r}; omit one of them",
                path,
                score[0],
                negative[0],
            )
        texts = (*columns["text"], *columns["second"], *negative)
        return [
            Row(row.line, row.texts, _number(row.cells[0], score[0], row.where) if score else None)
            for row in read_table(path, texts, score)
        ]

    def _columns_of(self, path: Source) -> dict[str, tuple[str, ...]]:
        """The columns of training rows by role; without a second column for single texts, and empty
        for plain text."""
        if kind_of(path) == "txt":
            return {}
        columns_by_role = find_columns(path, self.column_specs, self.columns)
        if "second" in columns_by_role:
            usual = next(spec.names for spec in self.column_specs if spec.role == "negative")
            numbered = numbered_series(columns(path))  # negative_1, negative_2
            several = next((numbered[name] for name in usual if name in numbered), None)
            return columns_by_role | ({"negative": several} if several else {})
        label = columns_by_role.get("label", ("",))[0]
        scored = label and (self.columns.label is not None or label.lower() not in LABEL_NAMES)
        if scored or "negative" in columns_by_role:
            find_columns(path, self.column_specs, self.columns, pair=True)  # raises
        refuse_ambiguous(path, columns_by_role, self.columns)
        return {k: names for k, names in columns_by_role.items() if k in ("text", "label")}

    def hold_out(
        self, rows: Sequence[Row], source: Source, seed: int
    ) -> tuple[Sequence[Row], Sequence[Row] | None]:
        if str(source) not in self.made_from:
            return rows, None
        train, dev = hold_out(rows, seed)
        self.held_out = len(dev or ())
        return train, dev

    def stream(self, path: Source) -> Iterator[Row]:
        if kind_of(path) == "txt":
            raise InputError(
                "{path} is plain text, but two texts per row are compared; for vectors of "
                "single texts use ownbert embed",
                path,
            )
        try:
            columns = find_columns(path, self.column_specs, self.columns, labelled=False, pair=True)
        except InputError as error:
            raise InputError(f"{error}; for vectors of single texts use ownbert embed") from None
        texts = (*columns["text"], *columns["second"])
        rows = read_table(path, texts, id=self.columns.id)
        return (Row(row.line, row.texts, id=row.id) for row in rows)

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        self.learnt = True
        self.made = self.made_from.get(str(source))
        self.metrics = RETRIEVAL_METRICS if rows[0].target is None else SIMILARITY_METRICS
        if rows[0].target is None:
            if len({row.texts[:2] for row in rows}) < 2:
                raise InputError("{source}: at least two pairs that differ are needed", source)
            self.min_batch_size = 2 if len(rows[0].texts) == 2 else 1
            return
        scores = [row.target for row in rows]
        self.scale = min(scores), max(scores)
        if self.scale[0] == self.scale[1]:
            raise InputError(
                "{source}: all rows have the score {scores:g}; at least two different scores "
                "are needed",
                source,
                scores[0],
            )

    def check(self, rows: Sequence[Row], source: Source, known: str) -> None:
        made = self.made_from.get(str(source))
        if made is not None and made is not self.made and {*made.texts} == {TWICE}:
            raise InputError(
                "{source}: its texts are too short to be cut into pieces, so they cannot be "
                "used for evaluation; give pairs of texts",
                source,
            )
        if self.made is not None and rows[0].target is not None:
            self.metrics, self.has_dev_loss = SIMILARITY_METRICS, False
        elif self.learnt and (rows[0].target is None) != (self.scale is None):
            has, others = ("no score", "has") if self.scale else ("a score", "has none")
            raise InputError(f"{source}: its rows have {has}, and {known} {others}")

    # Model inputs and outputs.

    def follow(self, folder: Path) -> None:
        """Read texts as the files of sentence-transformers in the model's folder require."""
        self.config = read_embedding_config(folder)
        self.max_length = self.config.max_length or self.max_length

    def input_builder(self, description: Description, max_length: int | None = None) -> Any:
        builder = super().input_builder(description, max_length)
        limits = description.config.max_length, max_length or builder.tokenizer.max_length
        builder.max_length = min((n for n in limits if n is not None), default=builder.max_length)
        return builder

    def describe_base(self, model: FinetuneModel) -> Description | None:
        description = super().describe_base(model)
        pooling = self.settings.pooling or read_pooling(model_folder(model.folder))
        self.pooling = pooling or self.pooling
        self.settings = replace(self.settings, pooling=pooling)
        return description

    def head_spec(self, description: Description) -> HeadSpec:
        return HeadSpec(self.head, pooling=self.pooling)

    def has_pooler(self, description: Description) -> bool | None:
        return next(iter(description.family.architectures.values())).pooler

    def complete_recipe(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        recipe = super().complete_recipe(recipe, builder)
        recipe = replace(recipe, task=replace(recipe.task, pooling=self.settings.pooling))
        if self.made is None:
            return recipe
        if not recipe.model.dropout and {*self.made.texts} == {TWICE}:
            raise InputError(
                "model.dropout is 0, and the training texts are too short to be cut into pieces: "
                "without dropout both vectors of a text are equal"
            )
        least, most = _EPOCHS
        epochs = min(most, max(least, math.ceil(_TEXTS / sum(self.made.texts.values()))))
        return replace(
            recipe,
            data=replace(recipe.data, batch_size=recipe.data.batch_size or _BATCH),
            run=replace(recipe.run, epochs=recipe.run.epochs or epochs),
        )

    def encode(
        self, rows: Sequence[Row], builder: TextInputBuilder, *, training: bool
    ) -> EncodedRows:
        numbers: dict[str, int] = {}
        examples, truncated = [], 0
        read, prompt = self.config.texts, self.config.prompt
        rows = [replace(row, texts=tuple(read(row.texts, prompt))) for row in rows]
        for row, ids in zip(rows, builder.ids_by_row(rows, builder.room + 1), strict=True):
            texts = [builder.example([text_ids]) for text_ids in ids]
            examples.append(join([text for text, _ in texts], **self._label(row, numbers)))
            truncated += any(was_truncated for _, was_truncated in texts)
        if not training or self.made is None or LINES in self.made.texts:
            return EncodedRows(examples, truncated)
        ends: Any = {"before": builder.format.before, "after": builder.format.behind}
        return RecutPieces(examples, truncated, seed=self.seed, room=builder.room, **ends)

    def _label(self, row: Row, numbers: dict[str, int]) -> dict[str, Any]:
        """The label for the objective: the score in [0, 1], or text ids; none unless training, and
        for dev rows with scores, which are compared with cosines later."""
        if self.learnt and self.scale is not None:
            low, high = self.scale
            return {"label": np.float32((row.target - low) / (high - low))}
        if not self.learnt or row.target is not None:
            return {}
        return {"label": np.asarray([numbers.setdefault(t, len(numbers)) for t in row.texts])}

    def objective(self, model: "Model") -> "Objective":
        from ownbert.tasks.row_objectives import ContrastiveObjective, CosineObjective

        if self.scale is not None:
            return CosineObjective()
        return ContrastiveObjective(temperature=self.settings.temperature)

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        logits = logits[..., : self.config.truncate_dim]
        unit = logits / np.maximum(np.linalg.norm(logits, axis=-1, keepdims=True), 1e-12)
        return list(unit.reshape(len(examples), -1, logits.shape[-1])[:, :2])

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> PairSimilarity:
        return PairSimilarity(float(raw[0] @ raw[1]), raw)

    def output_row(
        self, decided: PairSimilarity, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        return {"score": round(decided.cosine, 6)}

    def answer(self, decided: PairSimilarity, row: Row, top_k: int | None = DEFAULT) -> Any:
        return {"score": decided.cosine}

    def plain(self, decided: PairSimilarity, row: Row) -> float:
        return decided.cosine

    def score(self, rows: Sequence[Row], decided: Sequence[PairSimilarity]) -> Scores:
        vectors = np.stack([each.vectors for each in decided])
        return self.score_vectors(rows, vectors[:, 0], vectors[:, 1])

    def score_vectors(self, rows: Sequence[Row], first: Any, second: Any) -> Scores:
        """The metrics of given text vectors, (rows, D) unit vectors, dense or sparse."""
        if rows[0].target is not None:
            truth = np.asarray([[row.target] for row in rows])
            cosines = np.asarray((first * second).sum(1)).reshape(-1, 1)
            scores = score_regression(truth, cosines, ("score",))
            return Scores({name: scores.values[name] for name in SIMILARITY_METRICS})
        if self.made_from:  # a text paired with itself is trivial
            kept = [i for i, row in enumerate(rows) if row.texts[0] != row.texts[1]]
            kept = kept or [*range(len(rows))]
            rows, first, second = [rows[i] for i in kept], first[kept], second[kept]
        texts = [(row.texts[0], row.texts[1]) for row in rows]
        return Scores(retrieval_metrics(ranks(texts, first, second)))

    # Saving.

    def finish(self, model: "Model") -> "Model":
        """The encoder with its pooler, if any, without a head."""
        from ownbert.nn.model import Model

        pooler = model.pooler is not None
        bare = Model(model.config, (), pooler=pooler, model_type=model.model_type)
        bare.encoder, bare.pooler = model.encoder, model.pooler
        return bare

    def load(self, description: Description) -> "Model":
        from ownbert.checkpoint import load

        return load(description, heads=[self.head_spec(description)])

    def write(self, folder: Path, model: "Model") -> None:
        """Write the files of sentence-transformers, with the names used by all its versions."""
        kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds)
        ]
        flags = {flag: name == self.pooling for name, flag in _FLAGS.items()}
        pooling = {"word_embedding_dimension": model.config.hidden_size, **flags}
        limit = {"max_seq_length": self.max_length, "do_lower_case": False}
        prompts = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
        for _, path in kinds[1:]:
            make_folder(folder / path)
        write_json(folder / "1_Pooling" / "config.json", pooling)
        write_json(folder / "sentence_bert_config.json", limit)
        write_json(folder / "config_sentence_transformers.json", prompts)
        # Written last, because it lists the others.
        write_json(folder / "modules.json", modules)

    def notes(self) -> list[str]:
        held = f"held out pairs of {self.held_out:,} texts for evaluation"
        return [*(self.made.lines() if self.made else ()), *([held] if self.held_out else ())]

    def notes_on_rows(self) -> list[str]:
        return [line for each in self.made_from.values() for line in each.lines(training=False)]

    def readable_target(self, row: Row) -> str:
        if row.target is not None:
            return f"score {row.target:g}"
        if len(row.texts) > 3:
            return "the first two belong together"
        return "belong together" + (", but not the last" if len(row.texts) == 3 else "")


def _number(value: Any, column: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    raise InputError(
        "{where}: {column!r} has {value}; a score must be a number (rows without scores count "
        "as matching texts)",
        where,
        column,
        in_short(value),
    )
