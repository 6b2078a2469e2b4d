"""Masked words of the task's own texts, learnt before the task (Gururangan et al. 2020)."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from ownbert.data.corpus.store import prepare
from ownbert.errors import InputError
from ownbert.files import make_folder
from ownbert.finetuning.resume import PRETRAINED, finished
from ownbert.finetuning.run import Finetuning
from ownbert.pretraining.run import pretrain
from ownbert.train.state_files import remove_states

# Of the families whose pretraining can go on here.
_KINDS = ("bert", "ownbert-bert")
# Of a batch: so many tokens, but at least so many sequences of full length.
_TOKENS, _SEQUENCES = 2048, 8


def refuse_unfit(run: Finetuning) -> None:
    """``InputError`` for a model whose pretraining cannot go on."""
    kind = str(run.said.values.get("model_type"))
    if kind not in _KINDS:
        raise InputError(
            f"model.pretrain_steps is for BERT, and {run.recipe.model.folder} has model_type "
            f"{kind!r}; leave it out"
        )


def adapt(run: Finetuning, output: Path, *, resume: bool, quiet: bool) -> Path:
    """Learn masked words from the training and dev texts of ``run``; the folder of the model.

    The model stays in ``output/pretrained/model``, the texts do not. With ``resume`` a finished
    one is taken as it is, and a stopped one gone on with.
    """
    folder = output / PRETRAINED
    model, texts, tokens = folder / "model", folder / "texts.jsonl", folder / "tokens"
    if resume and finished(model):
        return model
    recipe = run.recipe
    make_folder(folder)
    try:
        with texts.open("w", encoding="utf-8") as file:
            for text in texts_of(run):
                file.write(json.dumps({"text": text}) + "\n")
        prepare(texts, tokens, tokenizer=recipe.model.folder, text_column="text")
        pretrain(
            tokens,
            model,
            resume=resume,
            overwrite=not resume,
            quiet=quiet,
            init_from=recipe.model.folder,
            objectives=("mlm",),
            max_steps=recipe.model.pretrain_steps,
            max_length=run.max_length,
            batch_tokens=max(_TOKENS, _SEQUENCES * run.max_length),
            learning_rate=run.usual_rate,
            dropout=recipe.model.dropout,
            precision=recipe.run.precision,
            device=recipe.run.device,
            seed=recipe.seed,
        )
    finally:
        # They may be private, and the ids of a text are the text.
        texts.unlink(missing_ok=True)
        shutil.rmtree(tokens, ignore_errors=True)
    remove_states(model)
    return model


def texts_of(run: Finetuning) -> Iterator[str]:
    """The different texts of training and dev rows; the words of a row that is tagged are one."""
    seen = set()
    for row in (*run.lesson.train_rows, *(run.lesson.dev_rows or ())):
        for text in [" ".join(row.texts)] if run.task.head == "tokens" else row.texts:
            if text.strip() and text not in seen:
                seen.add(text)
                yield text
