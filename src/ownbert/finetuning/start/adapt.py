"""Task-adaptive pretraining: masked language modelling on the task's own texts before fine-tuning
(Gururangan et al. 2020)."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from ownbert.checkpoint import Description
from ownbert.corpus.store import prepare
from ownbert.exceptions import InputError
from ownbert.files.text_files import own_text
from ownbert.files.writing import make_folder
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.pretraining.pretraining_run import pretrain
from ownbert.pretraining.vocabulary_alignment import BERT_TYPES
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.train.state_files import remove_states

# Tokens per batch, and the minimum number of full-length sequences per batch.
_TOKENS, _SEQUENCES = 2048, 8


def require_bert(description: Description, folder: str) -> None:
    """Check that the pretraining of a model can be continued.

    Raises:
        InputError: it cannot be continued.
    """
    kind = str(description.values.get("model_type"))
    if kind not in BERT_TYPES:
        raise InputError(
            "model.pretrain_steps is for BERT, and {folder} has model_type {kind!r}; leave it out",
            folder,
            kind,
        )


def adapt(
    recipe: FinetuneRecipe,
    texts: Iterable[str],
    folder: FinetuneFolder,
    *,
    learning_rate: float,
    max_length: int,
    quiet: bool,
) -> Path:
    """Continue the pretraining of the recipe's model on ``texts``, and save it in ``folder``.

    On resumption, a finished model is kept and an interrupted run continues. The texts are deleted
    from disk at the end.
    """
    if folder.resume and folder.finished:
        return folder.path
    parent = folder.path.parent
    corpus, tokens = own_text(parent / "texts.jsonl"), parent / "tokens"
    make_folder(parent)
    try:
        with corpus.open("w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}) + "\n")
        prepare(corpus, tokens, tokenizer=recipe.model.folder, text_column="text")
        pretrain(
            tokens,
            folder.path,
            resume=folder.resume,
            overwrite=folder.overwrite,
            quiet=quiet,
            init_from=recipe.model.folder,
            objectives=("mlm",),
            max_steps=recipe.model.pretrain_steps,
            max_length=max_length,
            batch_tokens=max(_TOKENS, _SEQUENCES * max_length),
            learning_rate=learning_rate,
            dropout=recipe.model.dropout,
            precision=recipe.run.precision,
            device=recipe.run.device,
            seed=recipe.seed,
        )
    finally:
        # The texts may be private, and token ids can be decoded.
        corpus.unlink(missing_ok=True)
        shutil.rmtree(tokens, ignore_errors=True)
    remove_states(folder.path)
    return folder.path
