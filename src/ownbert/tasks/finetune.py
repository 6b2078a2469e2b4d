"""Fine-tuning: a pretrained folder and labelled files in, a folder that answers out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.checkpoint import describe, load, load_tokenizer, save
from ownbert.config import EncoderConfig
from ownbert.data.loader import Loader
from ownbert.data.tables import read_labelled
from ownbert.errors import InputError
from ownbert.files import write_text
from ownbert.nn.model import Model
from ownbert.objectives import Classification, Learner
from ownbert.tasks.classify import (
    LabelledTexts,
    cut_warning,
    encode,
    label_numbers,
    probabilities,
    read_training,
)
from ownbert.tasks.measures import score
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.train.display import Display
from ownbert.train.distributed import asked
from ownbert.train.job import Job, Phase, Watch
from ownbert.train.log import need_tensorboard
from ownbert.train.loop import train
from ownbert.train.machine import pick_device, pick_precision
from ownbert.train.optim import make_optimizer
from ownbert.train.output import RECIPE, claim_output, resolve_run
from ownbert.train.saved import remove_states
from ownbert.train.settings import dump
from ownbert.train.state import TrainState

# Peak learning rates by hidden size for few examples; half of it for many. Tiny was measured (with
# 280 and 7,000 examples); the larger ones are BERT's usual range.
_RATES = ((128, 1e-3), (256, 5e-4), (512, 2e-4), (768, 5e-5))
_LARGE_RATE = 2e-5

# Few examples are seen more often, in smaller batches.
_FEW = 3000


def finetune(
    task: str = "classify",
    *,
    output: str | Path,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Model:
    """Fine-tune a model folder on labelled texts and save the best weights in ``output``.

    options: settings of ``FinetuneRecipe`` by name: ``model`` (the folder), ``train``, ``dev``,
    ``labels_per_class``, ``epochs``, ... Raises ``InputError`` for files, labels and settings
    that cannot be used; ``output`` is not touched then.
    """
    if task != "classify":
        raise InputError(f"task {task!r} is not known; one of classify")
    if asked():
        raise InputError("fine-tuning runs in one process; start it without torchrun")
    output = Path(output)
    options["model.folder"] = _as_text(options.pop("model", None))
    recipe = resolve_run(
        FinetuneRecipe,
        output,
        config=config,
        overrides=overrides,
        resume=resume,
        options={k: _as_text(v) for k, v in options.items()},
    )
    run = Finetuning(recipe)
    claim_output(output, resume=resume, overwrite=overwrite, identity=run.identity)
    write_text(output / RECIPE, dump(run.recipe))
    return run.train(output, resume=resume, quiet=quiet)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


class Finetuning:
    """A resolved recipe with its examples; the model is made by ``train``."""

    def __init__(self, recipe: FinetuneRecipe) -> None:
        for name, value in (("--model", recipe.model.folder), ("--train", recipe.data.train)):
            if not value:
                raise InputError(f"{name} is needed")
        if not recipe.data.dev:
            raise InputError("--dev is needed: labelled rows to tell when to stop")
        if recipe.run.tensorboard:
            need_tensorboard()
        self.device = pick_device(recipe.run.device)
        self.said = describe(recipe.model.folder)
        self.config = self.said.config
        self.tokenizer = load_tokenizer(recipe.model.folder, config=self.config)
        self.max_length = _max_length(recipe.data.max_length, self.config)
        data = recipe.data
        rows, self.labels = read_training(
            data.train,
            text_column=data.text_column,
            label_column=data.label_column,
            per_class=data.labels_per_class,
            seed=recipe.seed,
        )
        dev = read_labelled(data.dev, text_column=data.text_column, label_column=data.label_column)
        known = f"the training data {data.train}"
        self.train_data = self._encode(
            [r.text for r in rows], label_numbers(rows, self.labels, source=data.train, known=known)
        )
        self.dev_data = self._encode(
            [r.text for r in dev], label_numbers(dev, self.labels, source=data.dev, known=known)
        )
        self.recipe = self._completed(recipe)
        self.identity = {"training data": self.train_data.identity()}

    def _encode(self, texts: Sequence[str], labels: np.ndarray) -> LabelledTexts:
        ids, cut = encode(texts, self.tokenizer, self.max_length)
        return LabelledTexts(ids, labels, cut)

    def _completed(self, recipe: FinetuneRecipe) -> FinetuneRecipe:
        """The recipe with everything that depends on the machine, the size and the data."""
        few = len(self.train_data) < _FEW
        batch_size = recipe.data.batch_size or (16 if few else 32)
        epochs = recipe.run.epochs or (12 if few else 4)
        batches = -(-len(self.train_data) // batch_size)
        steps = max(1, batches // recipe.run.accumulate)
        run = replace(
            recipe.run,
            device=self.device.type,
            precision=pick_precision(recipe.run.precision, self.device),
            epochs=epochs,
            max_steps=recipe.run.max_steps or epochs * steps,
            eval_every=recipe.run.eval_every or steps,
        )
        peak = next((r for size, r in _RATES if self.config.hidden_size <= size), _LARGE_RATE)
        rate = recipe.optim.learning_rate or (peak if few else peak / 2)
        return replace(
            recipe,
            data=replace(recipe.data, batch_size=batch_size, max_length=self.max_length),
            optim=replace(recipe.optim, learning_rate=rate),
            run=run,
        )

    def make_model(self) -> Model:
        """The pretrained encoder (or, from scratch, one of its size) with a new head."""
        torch.manual_seed(self.recipe.seed)
        settings = self.recipe.model
        if settings.from_scratch:
            config = replace(
                self.config,
                hidden_dropout_prob=settings.dropout,
                attention_probs_dropout_prob=settings.dropout,
            )
            family, values = self.said.family, self.said.values
            head = replace(family.spec_of("classification", values), dropout=None)
            model = Model(config, [head], labels=self.labels, model_type=family.model_type)
        else:
            model = load(
                settings.folder,
                heads=["classification"],
                labels=self.labels,
                dropout=settings.dropout,
            )
        return model.to(self.device)

    def train(self, output: Path, *, resume: bool, quiet: bool) -> Model:
        """Run to the end and save the best weights. See ``finetune``."""
        display = Display("finetune", quiet=quiet)
        for line in self.summary():
            display.say(line)
        model = self.make_model()
        recipe = self.recipe
        learner = Learner(model, ())
        state = TrainState(learner, make_optimizer(learner, recipe.optim), self.identity)
        loader = Loader(self.train_data, recipe.seed, batch_size=recipe.data.batch_size or 16)
        job = Job(
            state=state,
            phases=[Phase(loader, [Classification()], lambda: self.evaluate(model))],
            optim=recipe.optim,
            run=recipe.run,
            folder=output,
            display=display,
            watch=Watch("macro_f1", patience=recipe.run.patience),
            seed=recipe.seed,
        )
        train(job, resume=resume)
        if state.best is not None and state.best_weights is not None:
            state.use_best()
            display.say(
                f"best dev macro-F1 {state.best['value']:.3f} at step {state.best['step']:,}; "
                f"saved {output}"
            )
        save(model, output, tokenizer=self.tokenizer)
        remove_states(output)
        return model.eval()

    def summary(self) -> list[str]:
        """What is about to be learnt from what, for people."""
        recipe, total = self.recipe, len(self.train_data)
        start = "new weights" if recipe.model.from_scratch else recipe.model.folder
        lines = [
            f"{total:,} training and {len(self.dev_data):,} dev documents, "
            f"{len(self.labels)} labels, from {start}; {recipe.run.epochs} epochs of batches of "
            f"{recipe.data.batch_size} on {recipe.run.device} in {recipe.run.precision}"
        ]
        for data, what in ((self.train_data, "training"), (self.dev_data, "dev")):
            if data.cut:
                lines.append(cut_warning(data.cut, len(data), self.max_length, f"{what} documents"))
        return lines

    def evaluate(self, model: Model) -> Mapping[str, float]:
        """Measures on the dev rows."""
        found = probabilities(model, self.dev_data.ids, precision=self.recipe.run.precision)
        truth = self.dev_data.labels
        scores = score(truth, found.argmax(1), self.labels)
        likely = np.take_along_axis(found, truth[:, None], 1)
        loss = float(-np.log(np.maximum(likely, 1e-12)).mean())
        return {
            "loss": loss,
            "classification_loss": loss,  # the name it has in the rows of training
            "accuracy": scores.accuracy,
            "macro_f1": scores.macro_f1,
        }


def _max_length(asked: int | None, config: EncoderConfig) -> int:
    longest = config.longest
    if asked is not None and not 3 <= asked <= longest:
        raise InputError(f"max_length {asked} must be from 3 to {longest}, the model's positions")
    return asked or longest
