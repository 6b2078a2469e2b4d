"""``probe``: measures the quality of a network's vectors with a linear model."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ownbert.checkpoint import CONFIG, describe
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.exceptions import InputError, warn_of_input
from ownbert.figures import plotted
from ownbert.files.folders import refuse_foreign, writing
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import make_folder, missing_folders, remove_empty
from ownbert.fitting.comparison import ComparedModel, Comparison, deciding
from ownbert.fitting.linear_candidates import fit_on_folds, fit_probe, standardised
from ownbert.fitting.networks import copy_network, warnings_of
from ownbert.fitting.rows.labelled_rows import (
    LabelledRows,
    find_task,
    read_labelled,
    split_notices,
)
from ownbert.hub import model_folder
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.engines import Say, say_each
from ownbert.inference.opened_blend import LayerEmbedder, embed_rows
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import BLEND, ENCODER, ENSEMBLE
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.metrics import Scores
from ownbert.tasks.related_rows import SplitColumns

_NAME = "probe"
_BY_NAME = ColumnNames()


@in_float32
def probe(
    model: str | Path,
    train: str | Path,
    output: str | Path,
    *,
    dev: str | Path | None = None,
    task: str | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    group: str | None = None,
    time_column: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    say: Say | None = None,
) -> tuple[Scores, str]:
    """Fit a linear model on the text vectors of a frozen network.

    The vectors are those of ``Embedder``: pooled as the folder's configuration says, by default the
    mean over the tokens.

    Args:
        model: folder of the network.
        train: labelled rows: csv, tsv, jsonl or parquet.
        output: folder to write, for ``predict`` and ``evaluate``.
        dev: rows for evaluation and for choosing the penalty; by default held out from ``train``.
        task: classify, multilabel or regress; by default detected from the labels.
        text_column: column of the text; by default found by its usual names, as are the next two.
        second_column: column of the second text of a pair.
        label_column: column of the label.
        group: column of groups, such as customers; rows of a group are held out together.
        time_column: column of times; the latest rows are held out.
        seed: seed of the folds.
        overwrite: replace the contents of ``output``.
        say: function that receives each note.

    Returns:
        The metrics on the held-out rows, and a description of these rows.

    Raises:
        InputError: files or labels cannot be used.
    """
    folder = Path(output)
    refuse_same(model, folder)
    with writing(folder):
        others = (CONFIG, WEIGHTS, ENSEMBLE)
        if any((folder / name).exists() for name in (BLEND, *others)) and not overwrite:
            raise InputError(
                "{folder} already contains a model; replace it with {--overwrite}", folder
            )
        refuse_foreign(folder, (BLEND, "members", *others))
        columns = ColumnNames(text_column, second_column, label_column)
        rows = _read(model, train, dev, task, columns, SplitColumns(group, time_column), seed, say)
        new = missing_folders(folder / "members")
        work = make_folder(folder / "members" / f".{_NAME}.part")
        try:
            copy_network(model_folder(model), work / ENCODER)
            compared = _compared(rows, fit_probe(work / ENCODER, rows, work)[0])
            path = f"members/{_NAME}"
            members = (BlendMember(_NAME, "frozen", (path,), float(compared.fitted.weights[0])),)
            shutil.rmtree(folder / path, ignore_errors=True)
            work.rename(folder / path)
            offsets = tuple(map(float, compared.fitted.offsets))
            decided = deciding(compared.blended.task, compared.fitted.decision)
            Blend(members, decided, offsets).write(folder)
            for name in others:
                (folder / name).unlink(missing_ok=True)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            remove_empty(new)
            raise
        return compared.blended.metrics, rows.source


def probe_layers(
    model: str | Path,
    train: str | Path,
    *,
    columns: ColumnNames = _BY_NAME,
    dev: str | Path | None = None,
    task: str | None = None,
    group: str | None = None,
    time_column: str | None = None,
    seed: int = 0,
    say: Say | None = None,
) -> tuple[list[Scores], str]:
    """Like ``probe``, for each layer: compare how much the layers encode about the labels.

    A separate linear model with its own penalty is fitted on each layer; nothing is written.

    Returns:
        The metrics on the held-out rows for each layer, the embeddings first, and a description of
            these rows.

    Raises:
        InputError: files or labels cannot be used.

    Source: Alain and Bengio 2016, "Understanding intermediate layers using linear classifier
    probes".
    """
    rows = _read(model, train, dev, task, columns, SplitColumns(group, time_column), seed, say)
    embedder = LayerEmbedder(model_folder(model))
    metrics = []
    for vectors in embedder.by_layer(embed_rows(embedder, rows.texts())):
        features, _, _ = standardised(vectors, rows)
        compared = _compared(rows, fit_on_folds(features, rows).scores)
        metrics.append(compared.blended.metrics)
    return metrics, rows.source


def _compared(rows: LabelledRows, scores: np.ndarray) -> Comparison:
    return Comparison(rows, [ComparedModel(_NAME, _NAME, "frozen", (), 0.0, scores)])


def _read(
    model: str | Path,
    train: str | Path,
    dev: str | Path | None,
    task: str | None,
    columns: ColumnNames,
    split: SplitColumns,
    seed: int,
    say: Say | None,
) -> LabelledRows:
    """The rows with their task; warns where the score will say little."""
    detected, description = find_task(train, columns, task), describe(model)
    detected.check_modality(description, model)
    rows = read_labelled(detected, train, dev, seed=seed, split=split)
    for notice in (*warnings_of(rows, description), *split_notices(rows, split, train, dev)):
        warning = notice.removeprefix("warning: ")
        if warning != notice:
            warn_of_input(warning)
        else:
            say_each([notice], say)
    return rows


def draw_layers(values: Sequence[float], name: str, path: Path) -> None:
    """Plot a metric by layer, from the embeddings (0) to the last layer."""
    best, layers = int(np.argmax(values)), range(len(values))
    with plotted(path, 7, 3.6) as (axis,):
        axis.plot(layers, values, marker="o")
        at, words = (best, values[best]), f"{values[best]:.3f}"
        offset = {"xytext": (0, 7), "textcoords": "offset points"}
        axis.annotate(words, at, **offset, ha="center", fontsize=9)
        axis.set(xlabel="layer (0: embeddings)", ylabel=name, xticks=layers)
        axis.margins(y=0.15)
