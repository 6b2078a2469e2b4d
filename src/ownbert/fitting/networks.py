"""The networks of ``fit``: pretrained on its texts, fine-tuned, and taught by the blend."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ownbert.checkpoint import CONFIG, describe, load, save
from ownbert.corpus.documents import read_documents
from ownbert.corpus.learn_vocabulary import learn_vocabulary
from ownbert.corpus.store import prepare
from ownbert.files import make_folder, own_text
from ownbert.finetuning.finetune import recipe_options
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.fitting.labelled_rows import LabelledRows
from ownbert.inference.finished_files import copy_files, network_files
from ownbert.pretraining.pretraining_run import pretrain
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY, Task
from ownbert.time_limit import time_limit
from ownbert.train.device import pick_device
from ownbert.train.state_files import newest_state, remove_states
from ownbert.train.watch.callbacks import Callbacks
from ownbert.train.watch.log import read_log

# The vocabulary of a pretraining on a CPU, by its minutes.
_FEWEST_WORDS, _WORDS_PER_MINUTE = 20_000, 2_500
# Characters of unlabelled text that are read for each second of pretraining, at most, on a CPU and
# on a GPU. A core learns from 75,000. The vocabulary of a million takes a second on an idle core,
# and several on a busy one.
_CHARACTERS_PER_SECOND, _CHARACTERS_ON_GPU = 250_000, 1_000_000
# Characters of a byte of a compressed file, about.
_UNPACKED = 4
# Seconds of a training, at least.
_SHORTEST = 2.0


@dataclass(frozen=True)
class Corpus:
    """The texts that a network is pretrained on.

    Args:
        files: of the unlabelled text.
        text_column: of tables.
    """

    files: Sequence[str]
    text_column: str | None

    def texts(self) -> Iterator[str]:
        """Each document of the unlabelled text in one piece."""
        if not self.files:
            return
        for document in read_documents(list(self.files), text_column=self.text_column):
            yield " ".join(document.pieces)

    def files_up_to(self, characters: int, path: Path) -> list[str | Path]:
        """The files; if they are larger, one with their first texts, which is written to
        ``path``."""
        sizes = (
            os.path.getsize(name) * (_UNPACKED if name.endswith((".gz", ".parquet")) else 1)
            for name in self.files
        )
        if sum(sizes) <= characters:
            return [*self.files]
        with open(path, "w", encoding="utf-8") as file:
            for text in self.texts():
                characters -= file.write(" ".join(text.split()) + "\n")
                if characters <= 0:
                    break
        return [path]


def pretrain_on(
    corpus: Corpus,
    rows: LabelledRows,
    folder: Path,
    *,
    kind: str,
    size: str,
    seconds: float,
    device: str,
    seed: int,
    on_save: Callable[[Path, Mapping[str, Any]], object] | None = None,
) -> Path:
    """A network that is pretrained on the unlabelled texts and those of the rows.

    Args:
        folder: of everything that is made for it; what is finished there is used again. Once the
            network is finished no text is left in it.
        kind: of the text, one of ``ownbert.views.tokens.KINDS``.
        seconds: for all of it.
        on_save: called each time that the network is saved.

    Returns:
        The folder of the network.
    """
    began, store, network = time.monotonic(), folder / "tokens", folder / "network"
    if is_pretrained(folder):
        return network
    make_folder(folder)
    with tempfile.TemporaryDirectory(prefix="ownbert-texts-") as scratch:
        own = own_text(Path(scratch, "rows.txt"))
        with open(own, "w", encoding="utf-8") as file:
            for row in rows.texts(rows.learnt):
                file.write("".join(" ".join(text.split()) + "\n" for text in row if text.strip()))
        cpu = pick_device(device).type == "cpu"
        most = int(seconds * (_CHARACTERS_PER_SECOND if cpu else _CHARACTERS_ON_GPU))
        paths = [*corpus.files_up_to(most, own_text(Path(scratch, "unlabelled.txt"))), own]
        given: dict[str, Any] = {"text_column": corpus.text_column} if corpus.text_column else {}
        if not (network / "vocab.txt").exists():
            form, words = "blank" if kind == "ids" else "wordpiece", _most_words(seconds, device)
            learn_vocabulary(paths, network, kind=form, vocab_size=words, **given)
        prepare(paths, store, tokenizer=network, **given)
    left = max(_SHORTEST, seconds - (time.monotonic() - began))
    with time_limit(left / 2):  # of what precedes the training
        pretrain(
            store,
            network,
            size=size,
            max_minutes=left / 60,
            device=device,
            seed=seed,
            resume=newest_state(network) is not None,
            quiet=True,
            with_card=False,
            callbacks=Callbacks(on_save=on_save),
        )
    remove_states(network)
    shutil.rmtree(store, ignore_errors=True)  # it holds the texts, as ids
    return network


def is_pretrained(folder: Path) -> bool:
    """Whether ``pretrain_on`` has finished the network of a folder."""
    network = folder / "network"
    return (network / CONFIG).exists() and newest_state(network) is None


def _most_words(seconds: float, device: str) -> int | None:
    """Words of a vocabulary that pretraining for so long can learn; None: any number.

    The words that a short pretraining on a CPU hardly sees cost time and memory and gain little.
    But with 6,000 instead of 20,000 the names that tell 150 articles apart fall into pieces, and
    the network that the blend teaches lost 8 to 13 points (docs/lab/pretraining.md).
    """
    if pick_device(device).type != "cpu":
        return None
    return max(_FEWEST_WORDS, round(_WORDS_PER_MINUTE * seconds / 60))


def finetune_on(
    rows: LabelledRows,
    learnt: Sequence[Row],
    base: Path,
    folder: Path,
    *,
    seconds: float,
    device: str,
    seed: int,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Fine-tune ``base`` on rows, which may have soft targets, and save it in ``folder``.

    All epochs are run, fewer where the seconds do not suffice; no row that models are compared on
    is looked at.
    """
    began, finetuned = time.monotonic(), FinetuneFolder(folder, resume=True)
    if finetuned.finished:
        return folder
    run = finetuning_run(rows, learnt, base, device=device, seed=seed, settings=settings)
    # By now the rows have been encoded, which takes time too.
    left = max(_SHORTEST, seconds - (time.monotonic() - began))
    run.recipe = replace(run.recipe, run=replace(run.recipe.run, max_minutes=left / 60))
    run.train(finetuned, quiet=True)
    return folder


def start_on(
    rows: LabelledRows,
    learnt: Sequence[Row],
    base: Path,
    folder: Path,
    *,
    device: str,
    seed: int,
) -> bool:
    """Save ``base`` with a head that is fitted to the rows, and nothing else that has learnt from
    them, in ``folder``; False if ``finetune_on`` does not start so."""
    run = finetuning_run(rows, learnt, base, device=device, seed=seed)
    if run.starts_linear:
        run.save_start(folder)
    return run.starts_linear


def finetuning_run(
    rows: LabelledRows,
    learnt: Sequence[Row],
    base: Path,
    *,
    device: str,
    seed: int,
    settings: dict[str, Any] | None = None,
) -> FinetuningRun:
    """The fine-tuning of ``base`` on rows, which may have soft targets."""
    task = rows.task
    options: dict[str, Any] = {"model": base, "seed": seed, "device": device, **(settings or {})}
    recipe = resolve(FinetuneRecipe, options=recipe_options(task.name, options))
    own = {name: getattr(recipe.task, name) for name in ("pooling", "ngrams", "mask_rate")}
    if task.name == "classify":  # the blend has offsets for rare labels
        own["class_weights"] = "equal"
    recipe = replace(
        recipe,
        data=replace(recipe.data, **task.columns.settings()),
        task=replace(task.settings, **own),
    )
    splits = (_with_all_labels(rows, learnt), None)
    return FinetuningRun(recipe, splits, labels=task.labels, with_card=False)


def _with_all_labels(rows: LabelledRows, learnt: Sequence[Row]) -> Sequence[Row]:
    """The rows, one of them with a distribution, so that labels none of them has are known."""
    task = rows.task
    if task.name != "classify" or {row.target for row in learnt if isinstance(row.target, str)} == (
        set(task.labels)
    ):
        return learnt
    first = next(i for i, row in enumerate(learnt) if isinstance(row.target, str))
    one_hot = tuple(float(label == learnt[first].target) for label in task.labels)
    return [*learnt[:first], replace(learnt[first], target=one_hot), *learnt[first + 1 :]]


def taught_rows(
    rows: LabelledRows, texts: Sequence[tuple[str, ...]], outputs: np.ndarray
) -> list[Row]:
    """The labelled rows that the first fold learns from, and what a teacher says of texts.

    Args:
        texts: N texts without labels.
        outputs: (N, C) probabilities or numbers.
    """
    taught = [
        Row(0, text, tuple(map(float, own))) for text, own in zip(texts, outputs, strict=True)
    ]
    return [*rows.first_fold[0], *taught]


def tokens_per_second(folder: Path) -> float:
    """How fast a network was fine-tuned, by its log."""
    found = [row["tokens_per_second"] for row in read_log(folder) if row.get("tokens_per_second")]
    return float(np.median(found)) if found else 1000.0


def tokens_per_text(folder: Path) -> float:
    """Tokens of a training row, on average, by the log of a fine-tuning."""
    rows = [row for row in read_log(folder) if row.get("tokens") and row.get("step")]
    if not rows:
        return 100.0
    batch = resolve(FinetuneRecipe, config=folder / RECIPE).data.batch_size or 16
    return max(1.0, rows[-1]["tokens"] / (rows[-1]["step"] * batch))


def copy_network(source: Path, target: Path) -> None:
    """Make ``target`` an ordinary model folder with the network of ``source``."""
    copy_files(source, target, network_files(source))


def calibrate_network(folder: Path, task: Task, factor: float, offsets: np.ndarray) -> None:
    """Multiply the outputs of the folder's network by a factor, add offsets (C) to them, and write
    the threshold of the task, so that the network alone has the probabilities and answers that the
    blend of it alone has."""
    if task.name == "regress":
        return
    description = describe(folder)
    model, values = load(description), dict(description.values)
    last = cast(Any, model.heads["classification"]).dense
    with torch.no_grad():
        last.weight *= factor
        last.bias.copy_(last.bias * factor + torch.as_tensor(offsets, dtype=last.bias.dtype))
    if isinstance(task, MultiLabelTask):
        values[KEY] = {**values[KEY], "threshold": task.threshold}
    save(model, folder, architecture=description.architecture, values=values)
