"""Pretraining: from a token store to a model folder with its card."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.batches.loader import Loader, Position
from ownbert.batches.masking import ordinary_tokens
from ownbert.batches.sampled_softmax import CandidateSampler
from ownbert.batches.word_features import describe_features
from ownbert.checkpoint import CONFIG, FEATURES, save
from ownbert.corpus.cooccurrence import cooccurrence_vectors
from ownbert.corpus.pretraining_examples import pretraining_data
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError, explaining_memory
from ownbert.files.folders import writing
from ownbert.language import translated
from ownbert.language.messages import Message, join
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.nn.output_heads import MaskedLMHead
from ownbert.nn.undrawn import shapes_alone
from ownbert.objectives import PRETRAINING, objectives_of
from ownbert.objectives.learner import Learner
from ownbert.objectives.span_corruption_lm import decoder_start_id
from ownbert.pretraining.init_weights import (
    new_config,
    new_learner,
    start_at_neighbours,
    unigram_log_probabilities,
)
from ownbert.pretraining.phase_data import PhaseData, plant, write_canaries
from ownbert.pretraining.pretrain_recipe import (
    DEFAULT_MINUTES,
    SAMPLED_FROM,
    SHORT,
    PretrainData,
    PretrainRecipe,
    PretrainTask,
)
from ownbert.pretraining.vocabulary_alignment import copy_checkpoint, position_limit
from ownbert.run.file_names import GENERATOR
from ownbert.run.model_card import changed_settings, hub_base, in_words, pictures, save_card, table
from ownbert.run.packed_encoder import MOST_TEXTS, PrecisionCheck, check_vectors
from ownbert.run.run_folder import RunFolder
from ownbert.run.training_run import Say, TrainingRun, describe_limit
from ownbert.settings import accepts_settings, dump, resolve
from ownbert.time_limit import OutOfTime
from ownbert.train import distributed
from ownbert.train.device import pick_precision, return_memory
from ownbert.train.distributed import ALONE, World
from ownbert.train.log import CURVES, read_log
from ownbert.train.loop import EVALUATIONS, Callbacks, Job, Phase, affordable_tokens
from ownbert.train.meter import matmul_rate

# Peak learning rates by hidden size. Those of tiny and mini were measured in runs of five minutes;
# those of larger sizes are conservative values for the same small batches.
_RATES = {128: 2e-3, 256: 1.5e-3, 512: 7e-4, 768: 2e-4}
_LARGE_RATE = 1e-4
# Key of a saved state.
_AROUND = "special tokens around texts"
_PREVIEWED_SEQUENCES = 3


@accepts_settings(PretrainRecipe)
@in_float32
def pretrain(
    tokens: str | Path | None = None,
    output: str | Path = "own-bert",
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    resume_step: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    callbacks: Callbacks | None = None,
    with_card: bool = True,
    **options: Any,
) -> Model:
    """Pretrain a model on a token store and save it, its log, curves and recipe in ``output``.

    Under torchrun all processes share the work and the first one writes.

    Args:
        tokens: folder of the token store.
        output: folder to write.
        config: recipe file.
        overrides: settings as "section.name=value".
        resume: continue from the last saved state with the recipe in ``output``; start if there is
            none.
        resume_step: continue from the saved state of this step.
        overwrite: replace the model in ``output``.
        quiet: print nothing.
        callbacks: functions to call with each row of the log, evaluation and saved model.
        with_card: whether to write a model card and curves, which takes some seconds for comparing
            precisions and measuring the machine.
        options: settings of ``PretrainRecipe`` by name (``size="mini"``, ``max_minutes=30``).

    Raises:
        InputError: ``output`` contains a model and neither ``resume`` nor ``overwrite`` is given,
            or the corpus or a setting cannot be used.
    """
    with writing(output):
        folder = RunFolder(output, resume=resume, overwrite=overwrite, resume_step=resume_step)
        recipe = folder.resolve(
            PretrainRecipe,
            config=config,
            overrides=overrides,
            options=options | {"data.tokens": None if tokens is None else str(tokens)},
        )
        saved = folder.saved is not None and (folder.path / CONFIG).exists()
        run = Pretraining(recipe, saved=folder.path if saved else None)
        run.callbacks = callbacks or run.callbacks
        run.with_card = run.with_curves = with_card
        with explaining_memory(lambda: run.sizes | {"max_length": recipe.longest}):
            return run.execute(folder, quiet=quiet)


class Pretraining(TrainingRun):
    """A pretraining recipe with its corpus, vocabulary and examples; ``saved``: folder of a resumed
    run, to read the structure of the model from."""

    command = "pretrain"

    def __init__(self, recipe: PretrainRecipe, *, saved: Path | None = None) -> None:
        super().__init__(recipe.run)
        if not recipe.data.tokens:
            raise InputError("no token store given; make one with: ownbert prepare")
        self.store = Store.open(recipe.data.tokens)
        self.tokenizer = self.store.tokenizer()
        self.vocabularies, added = (self.tokenizer,), []
        for objective in objectives_of(recipe.objectives):
            self.tokenizer, ids = objective.extend(self.tokenizer)
            if ids is not None:
                self.vocabularies += (self.tokenizer,)
                added.append(ids)
        if recipe.data.max_length is None:  # derived from the documents
            lengths, source = np.diff(self.store.document_ends, prepend=0), recipe.model.init_from
            median = float(np.median(lengths)) if len(lengths) else 0.0
            recipe = recipe.with_lengths(median, position_limit(source) if source else None)
        readers = {name for name, objective in PRETRAINING.items() if objective.reads_features}
        others = sorted(recipe.objectives - readers)
        if self.store.tags and others:
            raise InputError(
                "task.objectives has {others}, which does not read the word features of {folder}; "
                "use {options} (with mlm), or prepare the store without {--feature-columns}",
                others[0],
                self.store.folder,
                ", ".join(sorted(readers)),
            )
        self.config = new_config(recipe, self.tokenizer, saved)
        self.recipe = self._completed(recipe)
        self.identity = self._identity()
        self.ordinary = ordinary_tokens(self.config.vocab_size, self.tokenizer.special_ids)
        for ids in added:
            self.ordinary[ids] = False
        self.unigram = unigram_log_probabilities(self.store.counts, self.ordinary)
        self.canaries: list[dict[str, Any]] = []
        if recipe.data.canaries:
            if self.store.tags:
                raise InputError("data.canaries is for token stores without word features")
            self.store, self.canaries = plant(
                self.store,
                self.ordinary,
                recipe.data.canaries,
                held_out=recipe.data.held_out,
                seed=recipe.seed,
            )
        self.phase_data = [self._phase_data(task, data) for task, data in recipe.parts]

    def _phase_data(self, task: PretrainTask, settings: PretrainData) -> PhaseData:
        chosen = objectives_of(task.objectives)
        maskers = (o.masker(self.tokenizer, self.ordinary, task) for o in chosen)
        data, held_out = pretraining_data(
            self.store,
            self.tokenizer,
            next(filter(None, maskers), None),
            max_length=settings.max_length or SHORT,
            pairs=task.pairs,
            held_out=settings.held_out,
            seed=self.recipe.seed,
        )
        predicting = next(objective for objective in chosen if objective.predicts)
        unigram = predicting.unigram(self.unigram, data, self.ordinary)
        ordinary = torch.from_numpy(self.ordinary)
        return PhaseData(task, settings, data, held_out, unigram, ordinary)

    def _completed(self, recipe: PretrainRecipe) -> PretrainRecipe:
        """The recipe with all settings that depend on the machine and the model size."""
        rates = (rate for size, rate in _RATES.items() if size >= self.config.hidden_size)
        rate = recipe.optim.learning_rate or next(rates, _LARGE_RATE)
        run = replace(
            recipe.run,
            device=self.device.type,
            precision=pick_precision(recipe.run.precision, self.device),
        )
        if run.max_steps is None and run.max_minutes is None:
            run = replace(run, max_minutes=DEFAULT_MINUTES)
        if run.max_steps and any(run.max_steps * p.share < 1 for p in recipe.phases):
            raise InputError(
                "{max_steps} steps are too few: a phase would have none", run.max_steps
            )
        task = replace(recipe.task, softmax=self._softmax(recipe))
        optim = replace(recipe.optim, learning_rate=rate)
        return replace(recipe, task=task, optim=optim, run=run)

    def _softmax(self, recipe: PretrainRecipe) -> str:
        if recipe.task.softmax != "auto":
            return recipe.task.softmax
        gains = self.device.type == "cpu" and self.config.vocab_size >= SAMPLED_FROM
        samples = all(objective.samples for objective in objectives_of(recipe.objectives))
        return "sampled" if gains and samples else "full"

    def _identity(self) -> dict[str, str]:
        store, tokenizer = self.store, self.vocabularies[0]
        texts = {1 if o.pairs is None else 2 for o in objectives_of(self.recipe.objectives)}
        around = {count: tokenizer.input_format.special(count) for count in sorted(texts)}
        # Earlier versions had the special tokens of BERT around the texts of all tokenizers.
        new = {} if all(n == count + 1 for count, n in around.items()) else {_AROUND: str(around)}
        return new | {
            "corpus": f"{store.documents:,} documents of {len(store.tokens):,} tokens "
            f"({store.identity})",
            "vocabulary": f"{tokenizer.vocab_size:,} tokens ({tokenizer.fingerprint()[:12]})",
        }

    def make_learner(
        self, world: World = ALONE, *, fresh: bool = True, say: Say = lambda text: None
    ) -> Learner:
        objectives = [objective for data in self.phase_data for objective in data.objectives]
        learner = new_learner(self.recipe, self.config, objectives, self.store.tags)
        if self.recipe.task.softmax == "sampled":
            words = torch.from_numpy(self.ordinary)
            learner.sampler = CandidateSampler((self.unigram.exp() * words).to(self.device))
        if fresh:
            world.on_rank_zero(lambda: self.initialise(learner, say))
        learner.to(self.device)
        distributed.copy_from_first(learner, world)
        if self.recipe.run.shard and world.size > 1:
            distributed.shard(learner, world)
        return learner

    def initialise(self, learner: Learner, say: Say) -> None:
        """Set the initial weights, and report what was copied or skipped for lack of time.

        Word embeddings come from the model of ``init_from``, or from co-occurrences in the corpus
        unless the recipe has "random"; the first layer starts at neighbouring tokens unless
        ``init_positions`` is "random". The bias of the MLM decoder starts at the unigram
        log-probabilities, so that the first steps need not learn which words are frequent.
        """
        settings, seed = self.recipe.model, self.recipe.seed
        word = learner.model.encoder.embeddings.word.weight.data
        if settings.init_from:
            report = copy_checkpoint(
                learner.model,
                settings.init_from,
                self.tokenizer,
                self.store,
                counts_file=settings.init_counts,
                seed=seed,
            )
            say(str(report))
        elif settings.init_embeddings == "cooccurrence":
            try:
                vectors = torch.from_numpy(
                    cooccurrence_vectors(self.store, word.shape[1], self.ordinary, seed=seed)
                )
                counted = vectors.abs().sum(1) > 0
                word[counted] = vectors[counted]
            except OutOfTime:
                say("no time to count word co-occurrences: embeddings are initialised randomly")
            return_memory()
        if settings.init_positions == "neighbours" and not settings.init_from:
            for model in filter(None, (learner.model, learner.generator)):
                start_at_neighbours(model.encoder)
        for head in (learner.generator or learner.model).heads.values():
            if isinstance(head, MaskedLMHead):
                head.decoder.bias.data.copy_(self.phase_data[0].unigram)

    def phases(self, learner: Learner, world: World) -> list[Phase]:
        shares = [phase.share for phase in self.recipe.phases] or [1.0]
        # 0.1 + 0.2 exceeds 0.3, which would add a step to the second phase.
        ends = [*(end - 1e-9 for end in [*accumulate(shares)][:-1]), 1.0]
        phases, precision = [], self.recipe.run.precision
        for data, until in zip(self.phase_data, ends, strict=True):
            held_out = data.held_out_batches(self._evaluation_tokens(data))
            loader = Loader(
                data.examples,
                self.recipe.seed,
                batch_tokens=data.settings.batch_tokens,
                process=world.rank,
                processes=world.size,
                device=self.device.type,
                precision=precision,
            )
            evaluate = partial(data.evaluate, learner, held_out, precision)
            phases.append(Phase(loader, data.objectives, evaluate, until))
        return phases

    def _evaluation_tokens(self, data: PhaseData) -> float:
        """Maximum tokens of an evaluation, by the tokens trained between evaluations; infinite if
        evaluations are scheduled by the clock."""
        run = self.recipe.run
        steps = run.eval_every or (run.max_steps or math.inf) / EVALUATIONS
        return affordable_tokens(steps * run.accumulate * data.settings.batch_tokens)

    def peak_flops(self, world: World) -> float:
        if not self.with_card:
            return 0.0
        dtype = torch.bfloat16 if self.recipe.run.precision == "bfloat16" else torch.float32
        return world.total([_peak_flops(self.device, dtype, torch.get_num_threads())])[0]

    def save(self, learner: Learner, folder: RunFolder, world: World) -> None:
        """Save the current model, and ELECTRA's generator in a subfolder."""
        self.tokenizer.max_length = self.config.longest
        output = folder.path
        if world.first:
            write_canaries(output, self.canaries)
        folders = {output: learner.model, output / GENERATOR: learner.generator}
        for path, model in folders.items():
            if model is None:
                continue
            complete = distributed.gather_full_model(model)
            if world.first:
                values: dict[str, Any] = (
                    {FEATURES: dict(self.store.tags)} if self.store.tags else {}
                )
                if complete.decoder is not None:
                    values["decoder_start_token_id"] = decoder_start_id(self.tokenizer)
                    values["eos_token_id"] = self.tokenizer.sep_id
                save(complete, path, tokenizer=self.tokenizer, values=values)

    def finish(self, job: Job, folder: RunFolder) -> Model:
        model = job.state.learner.model
        if job.world.first and self.with_card:
            checked = self._check_precision(folder.path)
            evaluations = [row for row in read_log(folder.path) if row.get("evaluation")]
            precision = "" if checked is None else checked.sentences()
            metrics = evaluations[-1] if evaluations else {}
            if warning := self._write_card(folder.path, metrics, precision):
                job.display.say(warning)
        return model

    def _write_card(self, folder: Path, metrics: Mapping[str, Any], precision: str) -> str | None:
        """Write README.md, unless the user has written one; return a warning or None."""
        recipe, data, source = self.recipe, self._data(), self.recipe.model.init_from
        objectives = dict.fromkeys(o for task, _ in recipe.parts for o in task.objectives)
        # A head with word features needs more than text, and Transformers does not support it.
        classes = [o.auto_class for o in objectives_of(objectives) if o.auto_class is not None]
        fills = classes[-1:] == ["AutoModelForMaskedLM"] and not self.store.tags
        front = {"library_name": "transformers"}
        front |= {"pipeline_tag": "fill-mask"} if fills else {}
        values = {
            "config": self.config,
            "source": source and (hub_base(source) or Path(source).resolve().name),
            "fills": fills,
            "writes": classes[-1:] == ["AutoModelForSeq2SeqLM"],
            "tasks": ", ".join(translated(PRETRAINING[name].title) for name in objectives),
            "data": table(("", ""), in_words(data.items())),
            "settings": table(("setting", "value"), in_words(_settings(recipe))),
            "metrics": _metrics(metrics),
            "precision": precision,
            "pictures": pictures(folder, {CURVES: "Loss and accuracy during training"}),
        }
        return save_card(folder, front, __file__, values, base=source)

    def _check_precision(self, folder: Path) -> PrecisionCheck | None:
        """Compare vectors of held-out documents in bfloat16 and float32, if the processor supports
        bfloat16."""
        if self.device.type != "cpu" or pick_precision("auto", self.device) != "bfloat16":
            return None
        spans, tokens = self.phase_data[-1].held_out.spans, self.store.tokens
        chosen = range(0, len(spans), -(-len(spans) // MOST_TEXTS) or 1)
        checked = check_vectors(folder, [tokens[spans.starts[i] : spans.stops[i]] for i in chosen])
        if checked is not None:
            checked.record(folder)
        return checked

    def _data(self) -> dict[str, str]:
        store = self.store
        return {
            "documents": f"{store.documents:,}",
            "sentences": f"{store.sentences:,}",
            "tokens": f"{len(store.tokens):,}",
            "vocabulary": Message("{vocab_size:,} tokens", self.config.vocab_size),
            **({"word features": ", ".join(store.tags)} if store.tags else {}),
            "sequences": Message(
                "{count:,} for training, {phase_data_count:,} held out",
                len(self.phase_data[0].examples),
                len(self.phase_data[0].held_out),
            ),
            "identity": store.identity,
        }

    def summary(self) -> list[str]:
        store, config, recipe = self.store, self.config, self.recipe
        with shapes_alone():
            shapes = new_learner(recipe, config, (), store.tags)
        parameters = sum(p.numel() for p in shapes.model.parameters())
        run = recipe.run
        # In order, naming objectives shared by several phases once.
        tasks = dict.fromkeys(" + ".join(data.task.objectives) for data in self.phase_data)
        lengths = dict.fromkeys(f"{data.settings.max_length:,}" for data in self.phase_data)
        first = self.phase_data[0]
        return [
            Message(
                "{documents:,} documents, {sentences:,} sentences, {count:,} tokens, "
                "{vocab_size:,} in the vocabulary; {first_count:,} training sequences of up to "
                "{lengths} tokens, {count2:,} held out",
                store.documents,
                store.sentences,
                len(store.tokens),
                config.vocab_size,
                len(first.examples),
                join(lengths, ", then "),
                len(first.held_out),
            ),
            Message(
                "{init_from}: {num_hidden_layers} layers of {hidden_size}, "
                "{num_attention_heads} heads, {parameters:,} parameters; {describe_limit} of "
                "{tasks} on {device} in {precision}",
                recipe.model.init_from or recipe.model.size,
                config.num_hidden_layers,
                config.hidden_size,
                config.num_attention_heads,
                parameters,
                describe_limit(run),
                join(tasks, ", then "),
                run.device,
                run.precision,
            ),
            *([describe_features(store.tags)] if store.tags else []),
        ]


def preview_pretraining(
    tokens: str | Path | None = None,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """Describe what ``pretrain`` would do, without doing it."""
    options["data.tokens"] = None if tokens is None else str(tokens)
    run = Pretraining(resolve(PretrainRecipe, config=config, overrides=overrides, options=options))
    first, tokenizer = run.phase_data[0], run.tokenizer
    loader = Loader(first.examples, run.recipe.seed, batch_tokens=first.settings.batch_tokens)
    with contextlib.closing(loader.batches(Position())) as batches:
        batch, _ = next(batches)
    targets: dict[int, str] = {}
    if batch.masked_positions is not None and batch.masked_ids is not None:
        masked = tokenizer.tokens(batch.masked_ids.tolist())
        targets = dict(zip(batch.masked_positions.tolist(), masked, strict=True))
    inputs = tokenizer.tokens(batch.token_ids.tolist())
    words = [f"{t}->{targets[i]}" if i in targets else t for i, t in enumerate(inputs)]
    lines = [
        dump(run.recipe),
        *run.summary(),
        Message(
            "first batch: {sequences} sequences, {tokens:,} tokens, {count:,} to predict, shown "
            "as seen->target",
            batch.sequences,
            batch.tokens,
            len(targets),
        ),
    ]
    ends = list(accumulate(batch.layout.lengths))
    for number, (start, end) in enumerate(
        zip([0, *ends], ends[:_PREVIEWED_SEQUENCES], strict=False)
    ):
        pair = ""
        if batch.next_sentence is not None and first.task.pairs:
            classes = PRETRAINING[first.task.pairs].classes
            pair = f"  ({classes[int(batch.next_sentence[number])]})"
        lines.append(f"{number + 1}{pair}  {' '.join(words[start:end])}")
    return join(lines, "\n")


@cache
def _peak_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """``matmul_rate``, cached for all runs of a process because it takes a while."""
    return matmul_rate(device, dtype)


_SECTIONS = ("data", "model", "task", "optim", "run")
_BASELINES = {
    "unigram_loss": "loss of the unigram baseline",
    "uniform_loss": "loss of the uniform baseline",
}


def _settings(recipe: PretrainRecipe) -> Iterator[tuple[str, str]]:
    """The most important settings, then all others with non-default values."""
    yield "peak learning rate", f"{recipe.optim.learning_rate:.3g}"
    if recipe.run.max_steps:
        yield "steps", Message("{epochs} at most", recipe.run.max_steps)
    if recipe.run.max_minutes:
        yield "time", Message("{max_minutes:g} minutes at most", recipe.run.max_minutes)
    yield "batch", Message("{count:,} tokens", recipe.data.batch_tokens)
    yield "seed", str(recipe.seed)
    yield "computed on", f"{recipe.run.device}, {recipe.run.precision}"
    shown = {"data.tokens", "data.batch_tokens", "model.init_from", "model.init_counts"}
    shown |= {"run.max_minutes", "optim.learning_rate"}
    for name, value in changed_settings(recipe, PretrainRecipe(), _SECTIONS):
        if name not in shown:
            yield name, value


def _metrics(metrics: Mapping[str, Any]) -> str:
    """The losses and accuracies of the last evaluation with their baselines."""
    rows = [("step", f"{metrics['step']:,}")] if "step" in metrics else []
    for task, objective in PRETRAINING.items():
        words = objective.title
        loss, share = metrics.get(f"{task}_loss"), metrics.get(f"{task}_accuracy")
        if loss is not None:
            rows.append((Message("{words}: loss", words), f"{loss:.4f}"))
            if objective.predicts:
                rows.append(
                    (Message("{words}: perplexity", words), f"{math.exp(min(loss, 50)):,.1f}")
                )
        if share is not None:
            rows.append((Message("{words}: accuracy", words), f"{share:.4f}"))
    rows += [(words, f"{metrics[key]:.4f}") for key, words in _BASELINES.items() if key in metrics]
    return table(("metric", "value"), in_words(rows)) if rows else ""
