"""Surprisal of texts under a masked language model (pseudo-log-likelihoods of their tokens), and
anomaly scores relative to normal texts, whose profile is kept in a small file.

N texts, n tokens of a text, P parts of a score.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.batches.example import Example, batches_by_tokens
from ownbert.checkpoint.model_files import model_checksums, weights_checksums
from ownbert.checks import between
from ownbert.exceptions import InputError, named_repr
from ownbert.files.encodings import reads_encoding
from ownbert.files.input_files import refuse_same
from ownbert.files.npz_files import open_npz
from ownbert.files.resumable_file import first_read, made_for, require_identity
from ownbert.files.writing import atomic_path, checksum
from ownbert.hub import PREFIX, model_folder
from ownbert.inference.engines import Progress, Say, say_each
from ownbert.inference.fill_mask import Filler, masked_example
from ownbert.inference.row_files import RowJob, require_rows_name
from ownbert.inference.shards import DealtRows, part_of
from ownbert.inference.vector_files import Record, as_inputs, records_of, sources_of
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.row_network import blocks
from ownbert.tasks.text_input import UnknownWords
from ownbert.views.ngram_counts import NormalCounts

FALSE_ALARMS = 0.01
# Default number of passes over a text: every 6th token is masked, similar to pretraining.
PASSES = 6
# Tokens per forward pass; each masked token has V logits.
_BATCH_TOKENS = 4096
# Window size, in tokens, for models without a maximum length.
_WINDOW = 512


@dataclass(frozen=True)
class ScoredText:
    """A text and its scores; None if it has no tokens or no profile is fitted.

    Args:
        score: sum of the profile's parts, or ``surprisal`` without a profile.
        flag: whether the score exceeds the profile's threshold.
        reasons: unusual parts, rarest first.
        surprisal: mean surprisal per token in nats; ``perplexity`` is its exponential.
        tokens: tokens of the text; unknown tokens as written in the text.
        spans: character span of each token, end exclusive.
        surprisals: surprisal of each token, in nats.
        id: id of the row, if a column of ids is named.
    """

    text: str
    score: float | None
    flag: bool | None
    reasons: tuple[str, ...]
    surprisal: float | None
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    surprisals: tuple[float, ...]
    id: Any = None

    @property
    def perplexity(self) -> float | None:
        """Perplexity per token."""
        return None if self.surprisal is None else float(np.exp(self.surprisal))

    def as_row(self, *, tokens: bool = False) -> dict[str, Any]:
        """A row of a file without the text."""
        shown = {"score": self.score, "surprisal": self.surprisal, "perplexity": self.perplexity}
        rounded = {k: None if v is None else float(f"{v:.6g}") for k, v in shown.items()}
        row: dict[str, Any] = {"score": rounded.pop("score")}
        if self.flag is not None:
            row |= {"flag": self.flag, "reasons": list(self.reasons)}
        row |= rounded
        if tokens:
            values = (float(f"{value:.4g}") for value in self.surprisals)
            row["tokens"] = [list(each) for each in zip(self.tokens, values, strict=True)]
        return row


class Scorer:
    """A model folder with an MLM head that scores texts.

    Args:
        folder: model folder. If it has a profile of normal rows (``fit``, ``save``), texts are
            compared with these.
        passes: number of forward passes over a text (``surprisals``); None: as in the profile, or
            6.
        exact: mask one token per pass instead.
        false_alarms: share of normal texts that may be flagged; by default as fitted.
        device, engine: see ``Filler``.
        filler: the opened folder, to reuse it.
        refit: ignore the saved profile, for ``fit``.

    Raises:
        InputError: the folder has no MLM head, or its profile is damaged or was fitted with other
            weights or another number of passes.
    """

    @in_float32
    def __init__(
        self,
        folder: str | Path,
        *,
        passes: int | None = None,
        exact: bool = False,
        false_alarms: float | None = None,
        device: str = "auto",
        engine: str | None = None,
        filler: Filler | None = None,
        refit: bool = False,
    ) -> None:
        if passes is not None:
            between(1, limits.LENGTH, "[]")("passes", passes)
            if exact:
                raise InputError("exact masks one token in each pass; omit passes")
        self.folder = model_folder(folder)
        self.filler = filler or Filler(folder, device=device, engine=engine)
        self.profile = None if refit else NormalProfile.load(self.folder, false_alarms)
        if false_alarms is not None and self.profile is None and not refit:
            raise InputError(
                "{folder} has no profile of normal texts, which false_alarms needs; fit it: "
                "ownbert score FOLDER --normal FILE",
                self.folder,
            )
        chosen = None if exact else passes or PASSES
        if self.profile is not None:
            if (passes or exact) and chosen != self.profile.passes:
                mode = self.profile.passes or "exact"
                raise InputError(
                    "{folder} was fitted with other passes ({mode}); omit passes and exact, or "
                    "fit it again",
                    self.folder / NORMAL,
                    mode,
                )
            chosen = self.profile.passes
        self.passes = chosen
        self.unknown = UnknownWords(self.filler.tokenizer)

    def __repr__(self) -> str:
        return named_repr(self, self.folder, passes=self.passes, profile=self.profile is not None)

    @in_float32
    def fit(
        self,
        texts: Iterable[str],
        *,
        false_alarms: float = FALSE_ALARMS,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> "Scorer":
        """Fit a profile of normal texts, which defines the anomaly score and its threshold.

        Args:
            texts: normal texts, the more the better; at most 20,000 are used, sampled at random.
            false_alarms: share of normal texts that may be flagged.
            progress: called with the number of texts so far.
            say: called with a note if texts are sampled.

        Raises:
            InputError: there are too few texts for this share.
        """
        chosen, count = drawn(texts, MOST_ROWS)
        if say is not None and count > len(chosen):
            say(
                Message(
                    "note: {count:,} of the {count2:,} normal rows are used", len(chosen), count
                )
            )
        tokens: list[tuple[str, ...]] = []
        means: list[float] = []
        for block in blocks(chosen):
            for names, _, values in self._read(block):
                tokens.append(names)
                means.append(_mean(values) or 0.0)
            if progress is not None:
                progress(len(tokens))
        self.profile = NormalProfile.fit(
            tokens, np.array(means), false_alarms=false_alarms, passes=self.passes
        )
        return self

    def save(self) -> None:
        """Write the fitted profile into the folder (normal.npz); other files are unchanged."""
        if self.profile is None:
            raise InputError("nothing is fitted yet; call fit first")
        self.profile.save(self.folder)

    @in_float32
    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Score a text, or a list of texts in their order, as ``ScoredText``."""
        if isinstance(texts, str):
            return self([texts])[0]
        read, profile = self._read(texts), self.profile
        means = [_mean(values) for _, _, values in read]
        scored = [
            ScoredText(text, mean, None, (), mean, tokens, spans, tuple(values.tolist()))
            for text, mean, (tokens, spans, values) in zip(texts, means, read, strict=True)
        ]
        if profile is None or not read:
            return scored
        plain = np.array([mean or 0.0 for mean in means])
        weighed, nearest = profile.parts([tokens for tokens, _, _ in read], plain)
        scores = weighed.sum(1).tolist()
        for i, (tokens, _, values) in enumerate(read):
            reasons = tuple(profile.reasons(tokens, values, weighed[i], int(nearest[i])))
            flag = scores[i] > profile.threshold
            scored[i] = replace(scored[i], score=scores[i], flag=flag, reasons=reasons)
        return scored

    def _read(self, texts: Sequence[str]) -> list[Any]:
        """The tokens of each text with their character spans and surprisals."""
        # Logs are repetitive: each distinct text is processed once.
        distinct = list(dict.fromkeys(texts))
        tokenizer = self.filler.tokenizer
        encoded = list(tokenizer.with_offsets(distinct))
        self.unknown.count([ids for ids, _ in encoded], distinct)
        values = surprisals(self.filler, [ids for ids, _ in encoded], self.passes)
        results = {}
        for text, (ids, spans), text_values in zip(distinct, encoded, values, strict=True):
            names = tokenizer.tokens(ids.tolist())
            for i in np.flatnonzero(ids == tokenizer.unk_id):
                names[i] = text[spans[i, 0] : spans[i, 1]].replace("\0", " ")
            results[text] = tuple(names), tuple(map(tuple, spans.tolist())), text_values
        return [results[text] for text in texts]


class ScoredRows(RowJob):
    """Texts and their scores as rows of a file.

    Args:
        texts: files, folders or globs, or texts in memory; None: only fit ``normal``.
        normal: normal texts; a profile is fitted to them and saved in the folder before the first
            text is scored.
        tokens: whether rows include the tokens with their surprisals.
        progress: called with the number of normal texts so far.
        say: called with notes and, after the last text, with a warning if many words are unknown.
        each: called with each scored text.
        options: options of ``Scorer``.
    """

    def __init__(
        self,
        folder: str | Path,
        texts: Any,
        *,
        columns: ColumnNames,
        normal: Any = None,
        false_alarms: float | None = None,
        tokens: bool = False,
        dealt: DealtRows | None = None,
        progress: Progress | None = None,
        say: Say | None = None,
        each: Callable[[ScoredText], None] | None = None,
        **options: Any,
    ) -> None:
        if normal is not None and isinstance(folder, str) and folder.startswith(PREFIX):
            raise InputError("{folder} is on the hub; save it in a local folder first", folder)
        self.columns, self.tokens, self._each, self._say = columns, tokens, each, say
        records = iter(()) if texts is None else records_of(texts, columns)
        if dealt is not None:
            records = dealt.take(records, list)
        # Report unreadable files before fitting normal rows.
        self.blocks = self._to_end(first_read(blocks(records, size=lambda row: len(row[1]))))
        rate = false_alarms if normal is None else None
        self.scorer = Scorer(folder, refit=normal is not None, false_alarms=rate, **options)
        say_each(filter(None, (self.scorer.filler.engine.note,)), say)
        if normal is not None:
            rows = records_of(as_inputs(normal), ColumnNames(text=columns.text))
            rate = FALSE_ALARMS if false_alarms is None else false_alarms
            fitted = self.scorer.fit(
                (text for _, text in rows), false_alarms=rate, progress=progress, say=say
            )
            fitted.save()
            if texts is None:
                self._warn()

    def _to_end(self, blocks: Iterator[list[Record]]) -> Iterator[list[Record]]:
        yield from blocks
        self._warn()

    def _warn(self) -> None:
        say_each(filter(None, (self.scorer.unknown.warning(),)), self._say)

    def scored(self, block: Sequence[Record]) -> list[ScoredText]:
        """Score a block of texts."""
        texts = self.scorer([text for _, text in block])
        texts = [replace(text, id=id) for (id, _), text in zip(block, texts, strict=True)]
        if self._each is not None:
            for text in texts:
                self._each(text)
        return texts

    def rows(self, block: Sequence[Record]) -> list[dict[str, Any]]:
        """The output rows of a block."""
        name, output_rows = self.columns.id, []
        for scored in self.scored(block):
            row = {"text": scored.text, **scored.as_row(tokens=self.tokens)}
            if name in row:
                raise InputError(
                    "the id column {id!r} has the same name as a column of the output", name
                )
            output_rows.append(row if name is None else {name: scored.id, **row})
        return output_rows

    def depends_on(self) -> dict[str, Any]:
        """Everything but the texts that the rows depend on."""
        scorer, profile = self.scorer, self.scorer.profile
        return {
            "format": 1,
            "model": model_checksums(scorer.folder),
            "columns": {"text": self.columns.text, "id": self.columns.id},
            "precision": "float32",
            "options": {
                "passes": scorer.passes,
                "false_alarms": None if profile is None else profile.false_alarms,
                "normal": None if profile is None else checksum(scorer.folder / NORMAL),
                "tokens": self.tokens,
                "engine": scorer.filler.engine.name,
            },
        }


@reads_encoding
@in_float32
def score(
    folder: str | Path,
    texts: Any = None,
    output: str | Path | None = None,
    *,
    normal: Any = None,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    resume: bool = False,
    shard: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Any:
    """Compute the surprisal of texts, and anomaly scores relative to normal texts.

    With ``output``, texts are streamed, so neither side has to fit in memory. ``output`` is written
    completely or not at all; scores of an interrupted run are kept beside it.

    Args:
        folder: folder of a model with an MLM head.
        texts: files, folders or globs, one or several; or texts in memory, see ``embed``; None:
            only fit ``normal``.
        output: a table if its name ends with .csv or .tsv, else JSON lines; compressed if it ends
            with .gz.
        normal: normal texts in the same forms; a profile is fitted to them and saved in the folder
            for this and later calls.
        text_column: column of the text in tables.
        id_column: column of an id in tables, which becomes the first column of ``output``.
        encoding: encoding of text files; by default UTF-8.
        resume: continue an interrupted run.
        shard: with ``output``, score only this share of the texts, (3, 16) or "3/16", and write it
            beside ``output``, for ``ownbert.merge``.
        progress: called with the number of texts so far, normal texts first.
        options: options of ``ScoredRows`` and ``Scorer``: false_alarms (0.01 or as fitted), tokens,
            passes, exact, device, engine, say, each.

    Returns:
        The number of texts; without ``output`` a list of ``ScoredText``.

    Raises:
        InputError: a text cannot be read, or, with ``resume``, the model, the texts or the options
            differ.
    """
    if texts is None and (normal is None or output is not None):
        raise InputError("nothing to score: give texts, or only normal")
    output, dealt = part_of(output, shard)
    inputs = None if texts is None else as_inputs(texts)
    columns = ColumnNames(text=text_column, id=id_column)
    options |= {"columns": columns, "normal": normal, "progress": progress}
    if inputs is None or output is None:
        scored_rows = ScoredRows(folder, inputs, **options)
        scored = (one for block in scored_rows.blocks for one in scored_rows.scored(block))
        return 0 if inputs is None else [*scored]
    require_rows_name(output)
    sources = sources_of(inputs)
    refuse_same([folder, *sources], output)
    require_identity(made_for(sources, {}), resume=resume)
    scored_rows = ScoredRows(folder, inputs, dealt=dealt, **options)
    count = scored_rows.write(output, sources, resume=resume, progress=progress)
    dealt.write_manifest(output, scored_rows.depends_on)
    return count


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def drawn(texts: Iterable[Any], most: int) -> tuple[list[Any], int]:
    """A uniform random sample of at most ``most`` texts, in their order, and the total number."""
    rng = np.random.default_rng(0)
    kept: list[tuple[int, str]] = []
    count = 0
    for text in texts:
        if count < most:
            kept.append((count, text))
        elif (place := int(rng.integers(count + 1))) < most:
            kept[place] = (count, text)
        count += 1
    return [text for _, text in sorted(kept)], count


def surprisals(
    filler: Filler, texts: Sequence[np.ndarray], passes: int | None = PASSES
) -> list[np.ndarray]:
    """Compute -ln p of each token of texts, given the others: float32 (n) each, in nats.

    Each token is masked once: in each of ``passes`` passes every ``passes``-th token is masked;
    None: mask one token per pass, the exact pseudo-log-likelihood. Texts (ids without special
    tokens) longer than the model's limit are split into windows of equal length.

    Source: Salazar et al. 2020, Masked Language Model Scoring, equation 1.
    """
    input_format = filler.tokenizer.input_format
    limits = [each for each in (filler.longest, filler.tokenizer.max_length) if each]
    room = max(1, min(limits, default=_WINDOW) - input_format.special())
    results = [np.zeros(len(ids), dtype=np.float32) for ids in texts]
    # (text, first token, end, first masked token, distance between masked tokens)
    jobs: list[tuple[int, int, int, int, int]] = []
    for number, ids in enumerate(texts):
        windows = -(-len(ids) // room)
        edges = [len(ids) * i // windows for i in range(windows)] + [len(ids)]
        for start, end in pairwise(edges):
            step = min(passes or end - start, end - start)
            jobs += [(number, start, end, first, step) for first in range(step)]
    lengths = [end - start + input_format.special() for _, start, end, _, _ in jobs]
    for chosen in batches_by_tokens(np.argsort(lengths, kind="stable"), lengths, _BATCH_TOKENS):
        batch = [jobs[i] for i in chosen]
        examples = [_masked(filler, texts[n][start:end], *where) for n, start, end, *where in batch]
        values = filler.surprisals(examples)
        for number, start, end, first, step in batch:
            target = results[number][start:end][first::step]
            target[:], values = values[: len(target)], values[len(target) :]
    return results


def _masked(filler: Filler, ids: np.ndarray, first: int, step: int) -> Example:
    """A window in which every ``step``-th token from ``first`` on is masked."""
    tokenizer, input_format = filler.tokenizer, filler.tokenizer.input_format
    positions = np.arange(first, len(ids), step)
    masked = np.array(ids, dtype=np.int64)
    masked[positions] = tokenizer.mask_id
    example = masked_example(input_format.one(masked.tolist()), tokenizer)
    places, masked_ids = positions + input_format.before, np.asarray(ids[positions], np.int64)
    return replace(example, masked_positions=places, masked_ids=masked_ids, order=0 * positions)


NORMAL = "normal.npz"
# The parts of a score. Beyond the range of normal rows a part grows exponentially with the mean
# excess of their top 5% as its scale, or with this scale if larger: many normal rows have equal
# values.
PARTS = {"surprisal": 0.05, "counts": 0.01, "unseen": 1.0, "order": 0.01, "length": 0.05}
# Tolerances for these parts and for a score: values of a text differ slightly between batches.
_PART_TOLERANCE, _SCORE_TOLERANCE = 0.02, 0.01
# Maximum and minimum number of normal rows.
MOST_ROWS, _FEWEST = 20_000, 20
_FOLDS, _UPPER = 5, 0.05
_FORMAT = 1
# Tokens named in a reason.
_NAMED = 5
_FIT_AGAIN = "fit it again: ownbert score FOLDER --normal FILE"


class NormalProfile:
    """The parts of normal rows' scores, and the threshold for flagging a text.

    Args:
        counts: token statistics of normal rows.
        normal: float32 (N, P) parts of normal rows, each compared with other rows.
        false_alarms: share of normal rows that are flagged.
        passes: number of passes of the surprisal.
    """

    def __init__(
        self, counts: NormalCounts, normal: np.ndarray, false_alarms: float, passes: int | None
    ) -> None:
        between(0, 1)("false_alarms", false_alarms)
        needed = max(_FEWEST, math.ceil(1 / false_alarms - 1e-9))
        if len(normal) < needed:
            raise InputError(
                "{count:,} normal rows are too few for a false-alarm rate of {false_alarms:g}; "
                "it needs {needed:,} or more",
                len(normal),
                false_alarms,
                needed,
            )
        self.counts, self.normal, self.passes = counts, normal, passes
        self.false_alarms = false_alarms
        self._sorted = np.sort(normal, axis=0).astype(np.float64)
        sums = np.sort(self.weighed(normal).sum(1))
        place = math.ceil((len(sums) + 1) * (1 - false_alarms))
        self.threshold = float(sums[min(place, len(sums)) - 1]) + _SCORE_TOLERANCE

    @classmethod
    def fit(
        cls,
        texts: Sequence[Sequence[str]],
        surprisal: np.ndarray,
        *,
        false_alarms: float,
        passes: int | None,
    ) -> "NormalProfile":
        """Fit a profile to N normal texts, tokenised, with mean surprisals (N).

        Parts are computed by 5-fold cross-validation, so that they are those of unseen rows; the
        profile keeps all rows.
        """
        fold = np.random.default_rng(0).permutation(len(texts)) % _FOLDS
        normal = np.zeros((len(texts), len(PARTS)), dtype=np.float32)
        for number in range(_FOLDS if len(texts) >= _FEWEST else 0):
            others, own = (
                [text for text, n in zip(texts, fold, strict=True) if (n == number) == inside]
                for inside in (False, True)
            )
            place = fold == number
            normal[place], _ = _parts(NormalCounts.fit(others), own, surprisal[place])
        counts = NormalCounts.fit(texts if len(texts) else [()])
        return cls(counts, normal, false_alarms, passes)

    def parts(
        self, texts: Sequence[Sequence[str]], surprisal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weighted parts (N, P) of tokenised texts, which sum to the score, and the index of
        the nearest normal row (N)."""
        parts, nearest = _parts(self.counts, texts, surprisal)
        return self.weighed(parts), nearest

    def weighed(self, parts: np.ndarray) -> np.ndarray:
        """-ln of the share of normal rows with an equal or larger part: float64 (N, P).

        This puts the parts on one scale, and their sum is Fisher's method. Above the 95th
        percentile of normal rows, an exponential tail is assumed where it gives more.
        """
        count, weights = len(self._sorted), np.empty(parts.shape)
        for column, floor in enumerate(PARTS.values()):
            sorted_values, x = self._sorted[:, column], parts[:, column].astype(np.float64)
            same = _PART_TOLERANCE * floor
            larger = count - np.searchsorted(sorted_values, x - same, side="left")
            upper = sorted_values[int((1 - _UPPER) * (count - 1))]
            excess = sorted_values[sorted_values > upper + same] - upper
            scale = max(floor, excess.mean() if len(excess) else 0.0)
            tail = np.where(x > upper + same, (x - upper) / scale - math.log(_UPPER), 0.0)
            weights[:, column] = np.maximum(-np.log((larger + 1) / (count + 1)), tail)
        return weights

    def reasons(
        self, text: Sequence[str], surprisals: np.ndarray, weighed: np.ndarray, nearest: int
    ) -> list[str]:
        """The parts that are rarer than the false alarm rate, rarest first, each with the tokens
        that cause it."""
        least = -math.log(max(self.false_alarms, 1 / (len(self.normal) + 1))) - 1e-9
        names, reasons = list(PARTS), []
        for name in (names[i] for i in np.argsort(-weighed, kind="stable") if weighed[i] >= least):
            if name == "unseen":
                causes: Iterable[str] = (t for t in text if not self.counts.is_seen(t))
            elif name == "order":
                causes = map(" ".join, self.counts.unseen_pairs(text))
            elif name == "counts":
                differences = self.counts.differences(text, nearest)
                causes = (f"{token} x{own} for x{normal}" for token, own, normal in differences)
            elif name == "surprisal":
                order = sorted(zip(-surprisals, text, strict=True))
                causes = (t for value, t in order if value <= order[0][0] / 2)
            else:
                causes = (str(len(text)),)
            shown = list(dict.fromkeys(causes))
            shown[_NAMED:] = ["..."] if len(shown) > _NAMED else []
            reasons.append(f"{name}: {', '.join(shown)}" if shown else name)
        return reasons

    def save(self, folder: Path) -> None:
        """Write the profile into its model folder."""
        settings = {
            "format": _FORMAT,
            "parts": list(PARTS),
            "false_alarms": self.false_alarms,
            "passes": self.passes,
            "weights": weights_checksums(folder),
        }
        settings_bytes = np.frombuffer(json.dumps(settings).encode(), dtype=np.uint8)
        with atomic_path(folder / NORMAL) as path, path.open("wb") as file:
            arrays = {"settings": settings_bytes, "normal": self.normal, **self.counts.arrays()}
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, folder: Path, false_alarms: float | None = None) -> "NormalProfile | None":
        """Read the profile of a model folder; None if there is none.

        ``false_alarms`` is the share of normal rows that may be flagged; None: as fitted.
        """
        path = folder / NORMAL
        if not path.exists():
            return None
        with open_npz(path, _FIT_AGAIN) as stored:
            arrays = {name: np.asarray(stored[name]) for name in stored}
            settings: Mapping[str, Any] = json.loads(arrays["settings"].tobytes())
            if settings["format"] != _FORMAT or settings["parts"] != list(PARTS):
                raise InputError(
                    "{path} was written by another version of ownbert; {fit_again}",
                    *(path, _FIT_AGAIN),
                )
            if settings["weights"] != weights_checksums(folder):
                raise InputError(
                    "{path} was fitted with other weights than these; {fit_again}",
                    *(path, _FIT_AGAIN),
                )
            normal = arrays["normal"]
            if normal.ndim != 2 or normal.shape[1] != len(PARTS) or not np.isfinite(normal).all():
                raise ValueError("parts")
            rate = settings["false_alarms"] if false_alarms is None else false_alarms
            return cls(NormalCounts.from_arrays(arrays), normal, rate, settings["passes"])


def _parts(
    counts: NormalCounts, texts: Sequence[Sequence[str]], surprisal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The parts (N, P) of texts, and their nearest normal rows (N)."""
    measured, nearest = counts.measured(texts)
    return np.stack([{"surprisal": surprisal, **measured}[p] for p in PARTS], 1), nearest
