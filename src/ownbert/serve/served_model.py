"""A model folder for the server: its capabilities, and conversion of requests to items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.checkpoint.description import generator_in
from ownbert.exceptions import InputError
from ownbert.inference.embedder import Embedder
from ownbert.inference.engines import AUTO, FLOAT32, TORCH, Compute, MissingOutput
from ownbert.inference.fill_mask import Filler
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import Networks
from ownbert.inference.opened_blend import OpenedBlend
from ownbert.inference.pipeline import Predictor
from ownbert.inference.score import Scorer
from ownbert.inspect.explain.explain import METHOD, Explainer
from ownbert.inspect.explain.methods import METHODS, OCCLUSION
from ownbert.inspect.internals.observation import ChosenHeads, HeadChoice, attention_maps
from ownbert.language.messages import Message
from ownbert.serve.exchange import Refusal, bad_field, for_programs, too_large
from ownbert.tables.texts_or_files import table_of_texts
from ownbert.tasks.kinds import KINDS
from ownbert.tasks.rows import OutputOptions, Row
from ownbert.tasks.tag import TaggedSentence, tagged_words
from ownbert.tasks.task import NoTaskHead
from ownbert.unlabelled.duplicates import Duplicates, duplicates
from ownbert.unlabelled.index import Index, is_index
from ownbert.unlabelled.label import chosen_rows, gives_labels, read_report
from ownbert.unlabelled.topics import Topics, topics

# Names of tasks in Transformers pipelines and on the hub.
_PIPELINES = {"search": "sentence-similarity", "fill": "fill-mask", "translate": "translation"}
# Approximate tokens of an image, a measure of its cost.
_IMAGE_TOKENS = 256
# Number of forward passes of an explanation, where a gradient counts as two; for leave_one_out it
# is the number of words.
_PASSES = {
    "integrated_gradients": 144,
    "gradient_x_input": 3,
    "attention_rollout": 3,
    "attention_x_gradient": 3,
    "shapley": 1024,
}
# Numbers of words in the warm-up texts, and the texts of a batch: with the engine auto, batches of
# this size use torch.
_WARM_LENGTHS, _WARM_TEXTS = (1, 8, 32, 128), 16


@dataclass(frozen=True)
class Items:
    """The items of a request with their numbers of tokens."""

    items: list[Any]
    tokens: list[int]

    @property
    def total(self) -> int:
        """The total number of tokens."""
        return sum(self.tokens)


@dataclass(frozen=True)
class AttentionQuery:
    """An input, and the heads whose attention is requested."""

    example: Example
    heads: ChosenHeads

    @property
    def numbers(self) -> int:
        """The number of attention weights."""
        return sum(n * n for n in self.example.lengths) * sum(map(len, self.heads.values()))


class ServedModel:
    """A model folder, loaded once.

    Args:
        name: name in requests.
        folder: folder written by ``finetune``, ``fit``, ``probe``, ``pretrain`` or ``translate``,
            a sentence-transformers model, or an index of ``search build``, whose model is loaded
            too.
        threshold: see ``Predictor``.

    Attributes:
        predictor, embedder, filler, translator, index: those that the folder has, else None.
        task: main task of the folder: a task of ``finetune``, fill, embed, search or translate.
        operations: supported operations; a pretrained folder may support both embed and fill.
    """

    predictor: Any = None
    embedder: Any = None
    filler: Any = None
    translator: Any = None
    index: Any = None

    def __init__(
        self, name: str, folder: str | Path, compute: Compute = FLOAT32, threshold: Any = None
    ) -> None:
        self.name, self.folder, self.compute = name, Path(folder), compute
        self._threshold = threshold
        self._load()
        self._rows_predictor: Any = getattr(self.predictor, "rows_predictor", None)
        self._loaded = self._files()
        parts = {
            "search": self.index,
            "embed": self.embedder,
            "fill": self.filler,
            "translate": self.translator,
        }
        self.operations = [name for name, part in parts.items() if part is not None]
        if self.predictor is not None:
            self.operations.insert(0, self.predictor.task.name)
        elif threshold is not None:
            raise InputError("{folder} predicts no labels, so {--threshold} does not apply", folder)
        self.task = "fill" if self.filler is not None else self.operations[0]

    def _load(self) -> None:
        engine = self.compute.engine
        given: Any = {"device": self.compute.device, "precision": self.compute.precision}
        if (kind := generator_in(self.folder)) is not None:
            if engine not in (None, TORCH, AUTO):
                raise InputError("{folder} translates, which only torch supports", self.folder)
            self.translator = kind.door("translate")(self.folder, **given)
            return
        if is_index(self.folder):  # uses the precision it was built with
            self.index = Index(self.folder, device=self.compute.device, engine=engine)
            self.embedder = self.index.embedder
            return
        try:
            opened = open_folder(self.folder, self.compute)
        except NoTaskHead as error:
            description = error.description
        else:
            if not isinstance(opened, Networks) or opened.task.name != "embed":
                self.predictor = Predictor(opened, threshold=self._threshold)
                return
            (description,) = opened.described
        missing: list[MissingOutput] = []  # an exported file has either vectors or candidates
        # A head with word features needs more than texts.
        if any(s.kind == "mlm" and s.features is None for s in description.specs):
            try:
                self.filler = Filler(description, device=self.compute.device, engine=engine)
            except MissingOutput as error:
                missing.append(error)
        try:
            self.embedder = Embedder(description, **given, engine=engine)
        except MissingOutput as error:
            missing.append(error)
        if self.filler is None and self.embedder is None:
            raise missing[0]

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Modification times and sizes of the weight files."""
        members = getattr(self._rows_predictor, "members", ())
        files = {
            path
            for folder in (self.folder, *members)
            for pattern in ("config.json", "*.safetensors", "*.bin")
            for path in folder.glob(pattern)
        }
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    def reloaded(self) -> "ServedModel":
        """A new instance with the folder's current content."""
        return ServedModel(self.name, self.folder, self.compute, self._threshold)

    def warm_up(self) -> None:
        """Compute inputs of several lengths, so that the first requests are not slower."""
        task = getattr(self.predictor, "task", None)
        for length in _WARM_LENGTHS:
            text = " ".join(["a"] * length)
            sizes = (1, _WARM_TEXTS) if length == 8 else (1,)
            # Features of words are not made up.
            example = task.made_row(text) if task and not task.columns.features else None
            for count in sizes:
                if self.embedder is not None:
                    self.embedder.encode_ids(self.embed_items([text] * count).items)
                if example is not None:
                    self.predictor.decide(self.rows([example] * count).items)
            if self.filler is not None:
                room = (self.filler.longest or length) // 2  # longer texts are rejected
                masked = " ".join([self.filler.mask, *text.split()[:room]])
                self.fill([masked] * sizes[-1])
            if self.index is not None:
                self.index.search([text], top_k=1)
            if self.translator is not None:
                self.translate([text])

    # What the model is and does.

    @property
    def note(self) -> str:
        """The choice of the engine auto; empty with other engines."""
        parts = (self.filler, self.embedder)
        notes = [part.engine.note for part in parts if part is not None]
        if self.predictor is not None:
            notes = list(self._rows_predictor.notes())
        return "; ".join(note for note in dict.fromkeys(notes) if note)

    @property
    def pipeline(self) -> str:
        """The name of the task on the hub."""
        return self._pipeline_of(self.task)

    def _pipeline_of(self, operation: str) -> str:
        kind = KINDS.get(operation)
        return _PIPELINES[operation] if kind is None else kind.pipeline

    @property
    def pipelines(self) -> set[str]:
        """The hub names of all supported tasks."""
        features = {"feature-extraction"} if "embed" in self.operations else set()
        return features | set(map(self._pipeline_of, self.operations))

    @property
    def pair(self) -> bool | None:
        """Whether rows are pairs of texts; None: both are accepted, because OwnBERT has not
        trained the model."""
        return getattr(self.predictor.task, "pair", False) if self.predictor else False

    @property
    def scores_pairs(self) -> bool:
        """Whether the model is a reranker of the hub: one logit, whose sigmoid is the score."""
        described = getattr(self._rows_predictor, "described", ())
        problems = [each.values.get("problem_type") for each in described]
        return self.pair is None and self.task == "regress" and problems == [None]

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the task."""
        return self.predictor.labels if self.predictor else ()

    @property
    def max_length(self) -> int | None:
        """Maximum tokens of an input, if limited."""
        if self.embedder is None and self.filler is not None:
            return self.filler.longest
        return getattr(self.embedder or self._rows_predictor, "max_length", None)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; None for a blend without a network."""
        if self.translator is not None:
            return self.translator.source
        return getattr(self.embedder or self.filler or self._rows_predictor, "tokenizer", None)

    @property
    def reads_images(self) -> bool:
        """Whether inputs are images."""
        return self.predictor is not None and self.predictor.task.reads_arrays

    @property
    def explains(self) -> bool:
        """Whether ``explain`` is supported: a text network with weights in the folder, or a folder
        of ``fit``."""
        opened = self._rows_predictor
        blend = isinstance(opened, OpenedBlend)
        return not self.reads_images and (blend or bool(getattr(opened, "models", None)))

    @property
    def columns(self) -> set[str]:
        """The names of the text columns in training."""
        named = getattr(getattr(self.predictor, "task", None), "columns", None)
        return {name for key in ("text", "second") if (name := getattr(named, key, None))}

    def wrong_task(self, problem: str) -> Refusal:
        """The error for a request that the model, which ``problem`` is about, does not support."""
        return Refusal(422, f"the model {self.name} {problem}", "wrong_task")

    def require(self, operation: str, *, requested: str | None = None) -> None:
        """Raise a ``Refusal`` unless the operation, which ``requested`` needs, is supported."""
        if operation not in self.operations:
            known = ", ".join(self.operations)
            raise self.wrong_task(f"is for {known}, not for {requested or operation}")

    def require_labels(self) -> None:
        """Raise a ``Refusal`` unless the model predicts labels of single texts."""
        if self.predictor is None or not gives_labels(self.predictor.task):
            raise self.wrong_task("does not predict labels of texts")

    def network(self) -> Networks:
        """The network or ensemble that has logits of labels; a ``Refusal`` if there is none."""
        if self.task not in ("classify", "multilabel", "regress"):
            self.require("classify")
        if not isinstance(self._rows_predictor, Networks):
            raise bad_field(
                f"the model {self.name} is not a single network: it has probabilities but no logits"
            )
        return self._rows_predictor

    # Conversion of requests to items. What cannot be converted is a ``Refusal``.

    def rows(self, data: Sequence[Any], truncate: bool = True) -> Items:
        """Rows of the folder's task, from texts or mappings with the task's columns; ``truncate``:
        whether long rows are truncated, otherwise they are rejected."""
        if self.predictor is None:
            raise bad_field(f"the model {self.name} has no task head")
        if not self.reads_images:
            data = [self._checked_row(row) for row in data]
        try:
            rows = self.predictor.rows(list(data))
        except (InputError, ValueError, TypeError) as error:
            message = error.message if isinstance(error, InputError) else str(error)
            raise bad_field(for_programs(message).removeprefix("data: "), "inputs") from None
        if self.reads_images:
            return Items(rows, [_IMAGE_TOKENS] * len(rows))
        if not truncate:
            self._require_untruncated(rows)
        return Items(rows, [self.count(row.texts) for row in rows])

    def _require_untruncated(self, rows: Sequence[Row]) -> None:
        """Reject rows that a network would truncate."""
        predictors = [self._rows_predictor, *getattr(self._rows_predictor, "networks", ())]
        for predictor in predictors:
            if not isinstance(predictor, Networks):
                continue  # members of a blend or an ensemble
            if predictor.task.encode(rows, predictor.builder, training=False).truncated:
                limit = predictor.task.length_limit(predictor.max_length)
                raise too_large(f"a text is longer than {limit}, and truncate is false")

    def _checked_row(self, row: Any) -> str | Mapping[str, Any]:
        """The row, with two texts in a list as a mapping. Rejects invalid rows, because tables are
        less strict about texts."""
        if self.pair is not False and isinstance(row, list) and len(row) == 2:
            row = {"text": row[0], "text_pair": row[1]}
        if self.pair and isinstance(row, str):
            raise bad_field(
                f"the model {self.name} reads pairs: an input must be [text, text], or an "
                "object with text and text_pair",
                "inputs",
            )
        if isinstance(row, str):
            return row
        if not isinstance(row, Mapping):
            raise bad_field("an input must be a text, or an object with texts", "inputs")
        for key, value in row.items():
            several = isinstance(value, list) and all(isinstance(text, str) for text in value)
            if not several and not isinstance(value, str):
                raise bad_field(f"{key} must be a text or a list of texts", "inputs")
        if self.pair is False and "text_pair" in row:
            raise bad_field(f"the model {self.name} reads one text, not a pair", "inputs")
        return row

    def embed_items(
        self, texts: Sequence[str], prompt: str | None = None, truncate: bool = True
    ) -> Items:
        """Sequences of ids, from texts; for ``prompt`` see ``Embedder.ids``, for ``truncate``
        ``rows``."""
        self.require("embed")
        embedder = self.embedder
        ids, most = embedder.ids(texts, prompt), embedder.max_length
        if not truncate and most is not None:
            start = embedder.embedding_config.prompt if prompt is None else prompt
            pairs = zip(texts, ids, strict=True)
            full = [start + text for text, sequence in pairs if len(sequence) >= most]
            if any(
                len(sequence) > embedder.builder.room for sequence in embedder.builder.ids(full)
            ):
                raise too_large(f"a text has more than {most:,} tokens, and truncate is false")
        return Items(ids, [len(sequence) for sequence in ids])

    def embed_ids(self, sequences: Sequence[Sequence[int]]) -> Items:
        """Sequences of ids, from ids without special tokens."""
        self.require("embed")
        size = self.embedder.tokenizer.vocab_size
        for ids in sequences:
            if not ids or not all(0 <= i < size for i in ids):
                raise bad_field(f"token ids must be from 0 to {size - 1:,}, one or more", "input")
        items = [self.embedder.builder.one(ids) for ids in sequences]
        return Items(items, [len(sequence) for sequence in items])

    def prompt(self, name: Any) -> str | None:
        """The prompt with a name in the folder; None for the default one."""
        if name is None or self.embedder is None:
            return None
        if not isinstance(name, str):
            raise bad_field("prompt_name must be a text", "prompt_name")
        prompts = self.embedder.embedding_config.prompts
        if name not in prompts:
            known = ", ".join(prompts) or "none"
            raise bad_field(
                Message("there is no prompt {name!r}; the model has {options}", name, known),
                "prompt_name",
            )
        return prompts[name]

    def texts(self, texts: Sequence[str]) -> Items:
        """Texts without conversion."""
        return Items(list(texts), [self.count((text,)) for text in texts])

    def score_items(self, texts: Sequence[str]) -> Items:
        """Texts to score; tokens are counted for all passes."""
        counts = [self.count((text,)) for text in texts]
        passes = [self.scorer.passes or count for count in counts]
        return Items(list(texts), [n * min(n, p) for n, p in zip(counts, passes, strict=True)])

    def group_items(self, texts: Sequence[str]) -> Items:
        """Texts to group, as one item."""
        return Items([list(texts)], [sum(self.count((text,)) for text in texts)])

    def count(self, texts: Sequence[str]) -> int:
        """The number of tokens in a row's texts, approximately for a blend without a network."""
        if self.tokenizer is None:
            return sum(1 + len(text) // 4 for text in texts)
        return 2 + sum(map(len, self.tokenizer.encode_batch(list(texts))))

    def explain_items(self, data: Sequence[Any], method: str | None) -> Items:
        """Inputs whose predictions are explained; tokens are counted for all forward passes."""
        if not self.explains:
            raise self.wrong_task("does not support explanations")
        if method is None:
            blend = isinstance(self._rows_predictor, OpenedBlend)
            method = OCCLUSION[0] if blend else METHOD
        if method not in METHODS:
            known = ", ".join(METHODS)
            raise bad_field(
                Message("method {method!r} is not known; use one of {options}", method, known),
                "method",
            )
        tokens = self.rows(data).tokens
        targets = map(self.predictor.task.explained_count, tokens)
        passes = [_PASSES.get(method, count) for count in tokens]
        total = [a * b * c for a, b, c in zip(tokens, passes, targets, strict=True)]
        return Items(list(data), total)

    def attention_query(
        self, data: Any, layers: Sequence[int], heads: Sequence[int] | None
    ) -> AttentionQuery:
        """An input whose attention is requested: one of the model's task; for a model without a
        task a text, or a mapping with text and text_pair. For layers and heads see
        ``HeadChoice``."""
        model = self._attentive_model
        if model is None:
            raise self.wrong_task("shows no attention")
        chosen: ChosenHeads = {}
        for field, wanted in (("layers", None), ("heads", heads)):
            try:
                chosen = HeadChoice(layers, wanted).of(model)
            except InputError as error:
                raise bad_field(error.message, field) from None
        return AttentionQuery(self._example(data), chosen)

    @property
    def _attentive_model(self) -> Any:
        """The text model run by torch; for an ensemble, the first one."""
        if self.embedder is not None:
            return self.embedder.model
        if self.filler is not None or self.reads_images:  # an exported file
            return None
        return next(iter(getattr(self._rows_predictor, "models", None) or ()), None)

    def _example(self, data: Any) -> Example:
        """An input encoded as model input."""
        if self.embedder is None:
            (row,) = self.rows([data]).items
            builder = self._rows_predictor.builder
            return self._rows_predictor.task.encode([row], builder, training=False).examples[0]
        texts = [data]
        if isinstance(data, Mapping) and {*data} in ({"text"}, {"text", "text_pair"}):
            texts = [data[key] for key in ("text", "text_pair") if key in data]
        if not all(isinstance(text, str) for text in texts):
            raise bad_field(
                "an input must be a text, or an object with text and text_pair", "inputs"
            )
        texts[0] = self.embedder.embedding_config.prompt + texts[0]
        if self.filler is not None:
            texts = [self.filler.with_masks(text) for text in texts]
        builder = self.embedder.builder
        if len(texts) > 1 and builder.pair_room < 2:
            raise bad_field(f"the model {self.name} reads one text, not a pair", "inputs")
        return builder.example(builder.ids(texts))[0]

    def require_doubts(self, options: OutputOptions) -> None:
        """Raise a ``Refusal`` if the folder has no held-out rows for these options."""
        try:
            self.predictor.doubts(options)
        except InputError as error:
            field = "unknown" if options.coverage is None else "coverage"
            raise bad_field(error.message, field) from None

    # Work of the computing thread: results for the items of several requests.

    def attention(self, queries: list[AttentionQuery]) -> Sequence[list[dict[str, Any]]]:
        """The tokens of each sequence of each query, and the weights (S, S) of each layer and
        head."""
        return [self._weights(query) for query in queries]

    def _weights(self, query: AttentionQuery) -> list[dict[str, Any]]:
        maps = attention_maps(self._attentive_model, query.example, query.heads)
        sequences = []
        for ids, by_layer in zip(query.example.split(query.example.token_ids), maps, strict=True):
            layers = []
            for layer, of_layer in by_layer.items():
                rounded = (np.round(weights.astype(np.float64), 6) for weights in of_layer)
                pairs = zip(query.heads[layer], rounded, strict=True)
                heads = [{"head": head, "weights": weights} for head, weights in pairs]
                layers.append({"layer": layer, "heads": heads})
            sequences.append({"tokens": self.tokenizer.tokens(ids.tolist()), "layers": layers})
        return sequences

    def explain(self, data: list[Any], method: str | None) -> Sequence[list[dict[str, Any]]]:
        """Explanations of predictions for inputs, as dictionaries."""
        try:
            return [[e.to_dict() for e in self._explainer([row], method=method)] for row in data]
        except InputError as error:  # the method does not apply to linear models
            raise bad_field(error.message, "method") from None

    @cached_property
    def _explainer(self) -> Explainer:
        # The weights are read again, and must belong to the loaded model.
        if self._files() != self._loaded:
            message = f"the folder of {self.name} has changed since it was read"
            raise Refusal(409, f"{message}; POST /reload first", "changed")
        return Explainer(self._rows_predictor)

    def answer(self, decided: Any, row: Row, **options: Any) -> Any:
        """The prediction for a row, in the format of Transformers pipelines."""
        return self.predictor.task.answer(decided, row, **options)

    def words(self, decided: TaggedSentence, row: Row) -> list[dict[str, Any]]:
        """Every word with its tag, in the format of Transformers pipelines."""
        words = tagged_words(decided, row)
        return [{key: word[key] for key in word if key != "index"} for word in words]

    def fill(
        self, texts: list[str], targets: Sequence[int] | None = None, top: int | None = None
    ) -> Sequence[Any]:
        """Candidates for the masks of texts, among all tokens or ``targets``."""
        return list(self.filler(texts, targets=targets, top=top))

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report of ``fit``; empty if there is none."""
        return read_report(self.folder)

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer of a model with an MLM head."""
        return Scorer(self.folder, filler=self.filler)

    def score(self, texts: list[str]) -> Sequence[Any]:
        """Anomaly scores of texts."""
        return self.scorer(texts)

    def to_label(self, requests: list[list[str]], count: int) -> Sequence[list[dict[str, Any]]]:
        """The texts to label next for each request, chosen with LSA vectors."""
        rows = self._rows_predictor
        return [chosen_rows(rows, texts, count, report=self.report) for texts in requests]

    def topics(self, requests: list[list[str]], count: int | None) -> Sequence[Topics]:
        """The topics of the texts of each request, none of which is the name of a file."""
        return [topics(self.embedder, table_of_texts(texts), count=count) for texts in requests]

    def duplicates(self, requests: list[list[str]], threshold: float) -> Sequence[Duplicates]:
        """Duplicates among the texts of each request, by shingles; none is the name of a file."""
        return [duplicates(table_of_texts(texts), threshold=threshold) for texts in requests]

    def translate(self, texts: list[str]) -> Sequence[str]:
        """Translations."""
        return list(self.translator(texts))
