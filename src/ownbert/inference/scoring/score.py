"""How surprising texts are to a masked language model, and how unusual beside normal ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import limits
from ownbert.checkpoint.model_files import model_checksums
from ownbert.checks import between
from ownbert.corpus.documents import find_files
from ownbert.encodings import UTF8, current_encoding, reads_encoding
from ownbert.errors import InputError
from ownbert.files import checksum, refuse_same
from ownbert.folders import refuse_foreign
from ownbert.hub import is_name, model_folder
from ownbert.inference.embedding.vector_files import Record, as_inputs, records_of
from ownbert.inference.fill_mask import Filler
from ownbert.inference.opened import Progress
from ownbert.inference.output.prediction_writer import PredictionWriter
from ownbert.inference.output.shards import DealtRows, Shard, as_shard, manifest_path
from ownbert.inference.scoring.normal_profile import MOST_ROWS, NORMAL, NormalProfile
from ownbert.inference.scoring.surprisal import PASSES, surprisals
from ownbert.resumable_file import first_read, identity_of
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import MemoryTable
from ownbert.tasks.forward.batched_forward import blocks

Say = Callable[[str], None]
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class ScoredText:
    """A text and how unusual it is; None where it has no token, or nothing is fitted.

    Args:
        score: with a profile of normal rows the sum of its parts, else ``surprisal``.
        flag: whether the score is above the threshold of the profile.
        reasons: the parts that are unusual, the rarest first.
        surprisal: the mean of its tokens in nats; ``perplexity`` is e to the power of it.
        tokens: of the text; an unknown one as it stands there.
        spans: the characters of each token, ends exclusive.
        surprisals: of each token, in nats.
    """

    text: str
    score: float | None
    flag: bool | None
    reasons: tuple[str, ...]
    surprisal: float | None
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    surprisals: tuple[float, ...]

    @property
    def perplexity(self) -> float | None:
        """Of a token."""
        return None if self.surprisal is None else float(np.exp(self.surprisal))

    def as_row(self, *, tokens: bool = False) -> dict[str, Any]:
        """A row of a file, without the text; ``tokens``: with each token and its surprisal."""
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
    """A model folder with an MLM head, ready to score texts.

    Args:
        folder: of the model. If it has a profile of normal rows (``fit``, ``save``), texts are
            compared with these too.
        passes: in how many passes a text is read (``surprisals``); None: as in the profile, else
            6.
        exact: mask one token in each pass instead.
        false_alarms: the share of normal texts that may be flagged; by default as fitted.
        device, engine: as for ``Filler``.
        filler: the folder, if it is open.
        refit: ignore the profile, for ``fit``.

    Raises:
        InputError: the folder has no such head, or its profile is damaged, was fitted with other
            weights or with other passes.
    """

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
                raise InputError("exact masks one token in each pass; leave passes out")
        self.folder = model_folder(folder)
        self.filler = filler or Filler(folder, device=device, engine=engine)
        self.profile = None if refit else NormalProfile.load(self.folder, false_alarms)
        if false_alarms is not None and self.profile is None and not refit:
            raise InputError(
                f"{self.folder} has no profile of normal texts, which false_alarms needs; fit it: "
                "ownbert score FOLDER --normal FILE"
            )
        chosen = None if exact else passes or PASSES
        if self.profile is not None:
            if (passes or exact) and chosen != self.profile.passes:
                own = self.profile.passes or "exact"
                raise InputError(
                    f"{self.folder / NORMAL} was fitted with other passes ({own}); leave passes "
                    "and exact out, or fit it again"
                )
            chosen = self.profile.passes
        self.passes = chosen

    def fit(
        self,
        texts: Iterable[str],
        *,
        false_alarms: float = FALSE_ALARMS,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> "Scorer":
        """Learn from normal texts how unusual a text is, and from which score on it is flagged.

        Args:
            texts: normal ones, the more the better; of more than 20,000 as many are drawn.
            false_alarms: the share of normal texts that may be flagged.
            progress: called with the number of texts so far.
            say: called with a note if texts are drawn.

        Raises:
            InputError: there are too few for that share.
        """
        chosen, count = drawn(texts, MOST_ROWS)
        if say is not None and count > len(chosen):
            say(f"note: {len(chosen):,} of the {count:,} normal rows are used")
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
        """Write what was fitted into the folder (normal.npz); its other files stay as they are."""
        if self.profile is None:
            raise InputError("nothing is fitted yet; call fit first")
        self.profile.save(self.folder)

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """The ``ScoredText`` of a text, or a list of them in the order of the texts."""
        if isinstance(texts, str):
            return self([texts])[0]
        found = self._read(texts)
        means = [_mean(values) for _, _, values in found]
        scores, flags, reasons = means, [None] * len(means), [()] * len(means)
        if self.profile is not None and found:
            plain = np.array([mean or 0.0 for mean in means])
            weighed, nearest = self.profile.parts([tokens for tokens, _, _ in found], plain)
            scores = weighed.sum(1).tolist()
            flags = [score > self.profile.threshold for score in scores]
            reasons = [
                tuple(self.profile.reasons(tokens, values, *own))
                for (tokens, _, values), own in zip(
                    found, zip(weighed, nearest.tolist(), strict=True), strict=True
                )
            ]
        return [
            ScoredText(text, score, flag, reason, mean, tokens, spans, tuple(values.tolist()))
            for text, score, flag, reason, mean, (tokens, spans, values) in zip(
                texts, scores, flags, reasons, means, found, strict=True
            )
        ]

    def _read(self, texts: Sequence[str]) -> list[Any]:
        """The tokens, their characters and their surprisals of each text."""
        # Logs repeat themselves: a text is read once.
        distinct = list(dict.fromkeys(texts))
        tokenizer = self.filler.tokenizer
        encoded = list(tokenizer.with_offsets(distinct))
        values = surprisals(self.filler, [ids for ids, _ in encoded], self.passes)
        found = {}
        for text, (ids, spans), own in zip(distinct, encoded, values, strict=True):
            names = tokenizer.tokens(ids.tolist())
            for i in np.flatnonzero(ids == tokenizer.unk_id):
                names[i] = text[spans[i, 0] : spans[i, 1]].replace("\0", " ")
            found[text] = tuple(names), tuple(map(tuple, spans.tolist())), own
        return [found[text] for text in texts]


class ScoredRows:
    """Texts and their scores as rows of a file.

    Args:
        folder: of the model.
        texts: files, folders or globs, or texts in memory; None: only ``normal`` is learnt.
        columns: of the text and of ids.
        normal: normal texts: what is learnt from them is saved in the folder before the first text
            is scored.
        false_alarms: the share of normal texts that may be flagged.
        tokens: whether rows have the tokens with their surprisals.
        shard: only this share of the texts.
        progress: called with the number of normal texts so far.
        say: called with notes.
        each: called with each scored text.
        options: of ``Scorer``.

    Attributes:
        blocks: of ids and texts.
        dealt: the texts of the shard, out of all texts.

    Raises:
        InputError: a file cannot be read, or the folder cannot be used.
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
        shard: Shard | None = None,
        progress: Progress | None = None,
        say: Say | None = None,
        each: Callable[[ScoredText], None] | None = None,
        **options: Any,
    ) -> None:
        if normal is not None and isinstance(folder, str) and is_name(folder):
            raise InputError(f"{folder} is of the hub; save it in a folder of your own first")
        self.columns, self.tokens, self._each = columns, tokens, each
        self.dealt = None if shard is None else DealtRows(shard)
        inputs = MemoryTable("nothing", (), lambda _: iter(())) if texts is None else texts
        self._files = None if isinstance(inputs, MemoryTable) else find_files(inputs)
        records = iter(()) if texts is None else records_of(inputs, columns)
        if self.dealt is not None:
            records = self.dealt.take(records, list)
        # So a file that cannot be read is refused before normal rows are learnt.
        self.blocks = first_read(blocks(records, size=lambda record: len(record[1])))
        rate = false_alarms if normal is None else None
        self.scorer = Scorer(folder, refit=normal is not None, false_alarms=rate, **options)
        if say is not None and self.scorer.filler.engine.note:
            say(self.scorer.filler.engine.note)
        if normal is not None:
            rows = records_of(as_inputs(normal), ColumnNames(text=columns.text))
            rate = FALSE_ALARMS if false_alarms is None else false_alarms
            fitted = self.scorer.fit(
                (text for _, text in rows), false_alarms=rate, progress=progress, say=say
            )
            fitted.save()

    def scored(self, block: Sequence[Record]) -> list[ScoredText]:
        """The scores of a block."""
        found = self.scorer([text for _, text in block])
        if self._each is not None:
            for one in found:
                self._each(one)
        return found

    def rows(self, block: Sequence[Record]) -> list[dict[str, Any]]:
        """The rows of a block."""
        found = []
        for (id, text), one in zip(block, self.scored(block), strict=True):
            row = {"text": text, **one.as_row(tokens=self.tokens)}
            if self.columns.id in row:
                raise InputError(
                    f"the column {self.columns.id!r} of ids has the name of a column of the output"
                )
            found.append(row if self.columns.id is None else {self.columns.id: id, **row})
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.blocks:
            yield from self.rows(block)

    def made_for(self) -> dict[str, Any] | None:
        """The identity of a file of rows: everything that they depend on; None if their texts are
        in no file."""
        if self._files is None:
            return None
        encoded = {} if current_encoding() == UTF8 else {"encoding": current_encoding()}
        return {**self.depends_on(), "input": [identity_of(f) for f in self._files], **encoded}

    def depends_on(self) -> dict[str, Any]:
        """What the rows depend on besides the texts."""
        scorer, profile = self.scorer, self.scorer.profile
        options = {
            "passes": scorer.passes,
            "false_alarms": None if profile is None else profile.false_alarms,
            "normal": None if profile is None else checksum(scorer.folder / NORMAL),
            "tokens": self.tokens,
            "engine": scorer.filler.engine.name,
        }
        return {
            "format": 1,
            "model": [list(each) for each in model_checksums(scorer.folder)],
            "columns": {"text": self.columns.text, "id": self.columns.id},
            "precision": "float32",
            "options": options,
        }


@reads_encoding
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
    """How surprising texts are, and how unusual beside normal ones.

    With ``output`` texts are streamed, so neither side need fit in memory. ``output`` appears
    complete or not at all; what an interrupted run has scored is kept beside it.

    Args:
        folder: of a model with an MLM head.
        texts: files, folders or globs, one or several; or texts in memory, as ``embed`` takes them;
            None: only ``normal`` is learnt.
        output: a table if its name ends with .csv or .tsv, else JSON lines, and compressed if it
            ends with .gz.
        normal: normal texts, given likewise: what is learnt from them is saved in the folder, and
            later calls use it.
        text_column: the column of tables that holds the texts.
        id_column: the column of tables that each row of ``output`` has first.
        encoding: of text files, any that Python knows; by default UTF-8.
        resume: continue an interrupted run.
        shard: with ``output``, only a share of the texts, (3, 16) or "3/16": they are written
            beside ``output``, for ``ownbert.merge``.
        progress: called with the number of texts so far, first of the normal ones.
        options: those of ``ScoredRows`` and ``Scorer``: false_alarms (0.01 or as fitted), tokens,
            passes, exact, device, engine, say, each.

    Returns:
        The number of texts; without ``output`` a list of ``ScoredText``.

    Raises:
        InputError: a text cannot be read, or, with ``resume``, the model, the texts or the options
            differ.
    """
    if texts is None and normal is None:
        raise InputError("nothing to score: texts and normal are missing")
    own = as_shard(shard)
    if output is None and own is not None:
        raise InputError("a shard is written to a part of the output; name a file with output")
    inputs = None if texts is None else as_inputs(texts)
    columns = ColumnNames(text=text_column, id=id_column)
    options |= {"columns": columns, "normal": normal, "progress": progress, "shard": own}
    if inputs is None or output is None:
        found = ScoredRows(folder, inputs, **options)
        return [one for block in found.blocks for one in found.scored(block)] if texts else 0
    output = Path(output) if own is None else own.path(output)
    if own is not None:
        refuse_foreign(output.parent, [manifest_path(output).name], signs=())
    if not isinstance(inputs, MemoryTable):
        refuse_same([folder, *find_files(inputs)], output)
    elif resume:
        raise InputError("rows that are in no file cannot be resumed; leave out --resume")
    found = ScoredRows(folder, inputs, **options)
    writer = PredictionWriter(output, found.made_for(), resume=resume)
    count = writer.fill(found.blocks, found.rows, progress)
    if found.dealt is not None:
        found.dealt.write_manifest(output, found.depends_on())
    return count


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def drawn(texts: Iterable[Any], most: int) -> tuple[list[Any], int]:
    """At most so many texts, drawn evenly, in their order; and how many there were."""
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
