"""A small network pretrained only on the texts of a task, for estimators without a given model."""

from collections.abc import Sequence
from pathlib import Path

from ownbert.corpus.learn_vocabulary import learn_vocabulary
from ownbert.corpus.store import prepare
from ownbert.pretraining.pretrain_recipe import LONG
from ownbert.pretraining.pretraining_run import pretrain
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.views.tokens import text_kind

# With 3,000 questions of banking77 on one core, 100 steps take 7 seconds and raise the accuracy
# from .65 to .80; 400 steps take a minute longer and give .83. TF-IDF gives .74.
_STEPS, _TOKENS = 100, 2048
_FEW = 100


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
