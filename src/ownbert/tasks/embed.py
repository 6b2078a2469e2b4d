"""Sentence embeddings learnt from matching texts or from similarity scores."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ownbert.batches.example import Example
from ownbert.checkpoint import Description
from ownbert.config.head_spec import HeadSpec
from ownbert.corpus.documents import read_documents
from ownbert.exceptions import InputError, in_short
from ownbert.files.json_files import write_json
from ownbert.files.writing import make_folder
from ownbert.hub import model_folder
from ownbert.language.messages import Message, Option
from ownbert.tables.column_proposals import are_numbers
from ownbert.tables.columns import COUNTERS, LABEL_NAMES, find_columns, numbered_series
from ownbert.tables.tables import Source, columns, kind_of, shown_columns
from ownbert.tasks.embedding_config import (
    POOLINGS,
    EmbeddingConfig,
    read_embedding_config,
    read_pooling,
)
from ownbert.tasks.finetune_recipe import FinetuneModel, FinetuneRecipe
from ownbert.tasks.metrics import Scores
from ownbert.tasks.regression import score_regression
from ownbert.tasks.related_rows import text_key
from ownbert.tasks.row_network import RowNetwork
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row, read_table
from ownbert.tasks.task import DEFAULT, Task
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder, join
from ownbert.views.tokens import spans_of, text_kind

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
# Minimum tokens of texts that are split into pieces, and maximum mean tokens per piece.
_LONG, _PIECE = 16, 64
_MAX_SHIFT = 0.4  # maximum random shift of a boundary, as a share of a piece
# Share and maximum number of held-out documents; with fewer than the minimum, none.
_SHARE, _MOST, _LEAST = 0.1, 500, 10
# The kinds of pairs.
LINES, PIECES, TWICE = KINDS = ("lines", "pieces", "twice")


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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
        names, text = columns(path), columns_by_role["text"][0]
        usual = {*COUNTERS, *LABEL_NAMES, text.lower(), "uuid"}
        others = [n for n in names if n.lower() not in usual and not are_numbers(path, n)]
        if self.columns.text is None and others:
            named = str(Option("--text-column", text))
            second = str(Option("--second-column", others[0]))
            raise InputError(
                "{path}: it is unclear whether a row is one text or a pair; to make pairs from "
                "single texts add {named}, for pairs of two columns {named} {second}; the columns "
                "are: {names}",
                path,
                named,
                second,
                shown_columns(names),
            )
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
            raise InputError(
                "{error}; for vectors of single texts use ownbert embed", error
            ) from None
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
            raise InputError(
                "{source}: its rows have {has}, and {options} {others}", source, has, known, others
            )

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
        vectors = np.stack([pair.vectors for pair in decided])
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
        held = Message("held out pairs of {held_out:,} texts for evaluation", self.held_out)
        return [*(self.made.lines() if self.made else ()), *([held] if self.held_out else ())]

    def notes_on_rows(self) -> list[str]:
        return [line for pairs in self.made_from.values() for line in pairs.lines(training=False)]

    def readable_target(self, row: Row) -> str:
        if row.target is not None:
            return Message("score {target:g}", row.target)
        if len(row.texts) > 3:
            return "the first two belong together"
        return "belong together" + (", but not the last" if len(row.texts) == 3 else "")


@dataclass(frozen=True)
class MadePairs:
    """Statistics of generated pairs: number of texts by kind of pair, number of duplicate texts
    that were skipped, and the name of a column of labels, which pairs do not need."""

    texts: Mapping[str, int]
    copies: int
    labels: str = ""

    def lines(self, *, training: bool = True) -> Iterator[str]:
        """Yield one line per kind, for the user."""
        if count := self.texts.get(LINES):
            yield Message("made pairs of consecutive lines from {count:,} texts", count)
        if count := self.texts.get(PIECES):
            yield Message("made pairs of two pieces of a text from {count:,} texts", count)
        if (count := self.texts.get(TWICE)) and not training:
            yield Message(
                "texts that are too short for two pieces and are not used: {count:,}", count
            )
        elif count:
            yield (
                Message(
                    "made pairs of a text with itself from {count:,} short texts: dropout makes "
                    "the two vectors differ",
                    count,
                )
            )
        if self.copies:
            yield Message("skipped {copies:,} copies of other texts", self.copies)
        if self.labels:
            yield Message(
                "the column {labels!r} is not used: pairs are made from the texts alone",
                self.labels,
            )


@dataclass(frozen=True)
class RecutPieces(EncodedRows):
    """Pairs of pieces of a text, of at most ``room`` tokens between ``before`` and ``after``
    special ones, which is split at another position in each epoch."""

    before: int = 1
    after: int = 1
    room: int = 1

    def example(self, epoch: int, index: int) -> Example:
        example = super().example(epoch, index)
        assert example.parts is not None
        assert isinstance(example.label, np.ndarray)
        size, before = example.parts[0], self.before
        ids, types = ([v[:size], v[size:]] for v in (example.token_ids, example.type_ids))
        inner = np.concatenate([text_ids[before : len(text_ids) - self.after] for text_ids in ids])
        quarter = len(inner) // 4
        if example.label[0] == example.label[1] or quarter == 0:
            return example
        rng = np.random.default_rng((self.seed, epoch, index))
        cut = int(rng.integers(quarter, len(inner) - quarter + 1))
        pieces = [inner[:cut][: self.room], inner[cut:][: self.room]]
        ends = slice(size - self.after, size)

        def with_context(values: np.ndarray, middles: Sequence[np.ndarray]) -> np.ndarray:
            rows = [(values[:before], middle, values[ends]) for middle in middles]
            return np.concatenate([part for row in rows for part in row])

        inner_types = [np.full_like(piece, types[0][before]) for piece in pieces]
        return replace(
            example,
            token_ids=with_context(ids[0], pieces),
            type_ids=with_context(types[0], inner_types),
            parts=tuple(before + len(piece) + self.after for piece in pieces),
        )


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


def make_pairs(
    path: Source, columns_by_role: Mapping[str, Sequence[str]]
) -> tuple[list[Row], MadePairs]:
    """Generate pairs from single texts: the columns of a table, or plain text as ``read_documents``
    reads it. The ``line`` of a row is the number of its text (or of the row in a table).

    A text of several lines gives pairs of consecutive lines; a longer line gives pairs of
    consecutive pieces; a short one is paired with itself, and dropout makes its two vectors differ
    (Gao et al. 2021, "SimCSE", section 3). Lines and pieces are used once.
    """
    if kind_of(path) == "txt":
        texts: Iterable[tuple[int, Sequence[str]]] = (
            (number, document.pieces)
            for number, document in enumerate(read_documents(str(path)), start=1)
        )
    else:
        table = read_table(path, columns_by_role["text"])
        texts = ((row.line, row.texts[0].splitlines()) for row in table)
    stripped = ((number, [line.strip() for line in lines]) for number, lines in texts)
    documents = [(number, list(filter(None, lines))) for number, lines in stripped if any(lines)]
    kind = text_kind(line for _, lines in documents for line in lines)
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    seen: set[tuple[str | bytes, ...]] = set()
    for number, lines in documents:
        # Copies may not be on both sides of a split, and would be wrong answers in a batch.
        key = tuple(map(text_key, lines))
        if key in seen:
            continue
        seen.add(key)
        pieces = lines if len(lines) > 1 else _pieces(lines[0], kind)
        if len(pieces) == 1:
            pieces = pieces * 2
            counts[TWICE] += 1
        else:
            counts[LINES if len(lines) > 1 else PIECES] += 1
        pairs = list(zip(pieces[::2], pieces[1::2], strict=False))
        if len(pieces) % 2:  # the last one is appended to the previous one
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {pieces[-1]}")
        rows += [Row(number, pair) for pair in pairs]
    if not rows:
        raise InputError("{path} has no text to make pairs from", path)
    return rows, MadePairs(counts, len(documents) - len(seen), *columns_by_role.get("label", ()))


def hold_out(rows: Sequence[Row], seed: int) -> tuple[Sequence[Row], Sequence[Row] | None]:
    """Hold out some texts for evaluation, with one pair each; the rows of a group are on the same
    side. No dev rows (None) if too few texts give two distinct texts."""
    first = {row.line: row for row in reversed(rows) if row.texts[0] != row.texts[1]}
    count = min(_MOST, int(len(first) * _SHARE))
    if count < _LEAST:
        return rows, None
    order = np.random.default_rng(seed).random(len(first)).argsort(kind="stable")
    numbers, held_out = sorted(first), set[int]()
    members: dict[str | int, list[int]] = {}
    for number in numbers:
        members.setdefault(_group(first[number]), []).append(number)
    for i in order.tolist():
        if len(held_out) >= count:
            break
        held_out.update(members[_group(first[numbers[i]])])
    groups = {_group(first[number]) for number in held_out}
    train = [row for row in rows if _group(row) not in groups]
    return train, [first[number] for number in sorted(held_out)]


def _group(row: Row) -> str | int:
    """The group of a row, or its text, which is a group if there is no other."""
    return row.line if row.group is None else row.group


def _pieces(text: str, kind: str) -> list[str]:
    """Split a text into an even number of pieces, of random lengths, because equal ones would
    reveal which belong together; a short text stays whole."""
    # Scripts with spaces are split only there, others not before a vowel sign.
    starts = [start for start, _ in spans_of(text, "marked" if kind == "chinese" else "ids")]
    if len(starts) < _LONG:
        return [text]
    count = 2 * max(1, round(len(starts) / (2 * _PIECE)))
    moved = np.random.default_rng(len(text)).uniform(-_MAX_SHIFT, _MAX_SHIFT, count - 1)
    places = ((np.arange(1, count) + moved) * len(starts) / count).astype(int).tolist()
    cuts = [0, *(starts[place] for place in places), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts)]
