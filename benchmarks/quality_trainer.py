"""Transformers' own Trainer from random weights, a baseline of benchmarks/quality.py.

A BERT of the given size learns the labelled rows of a draw for the given minutes, shared equally
by the learning rates that are tried; rate and epoch are chosen by macro-F1 on the dev rows. The
vocabulary comes from training and unlabelled text.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from quality_baselines import Candidate, Features
from quality_sets import write_documents
from sklearn.metrics import f1_score
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from transformers.data.data_collator import DataCollatorWithPadding

import ownbert
from ownbert.config import SIZES

RATES = (3e-4, 1e-3)
EPOCHS = 100  # at most; the time limit ends most runs before
BATCH = 16


class Deadline(transformers.TrainerCallback):
    """Ends training when its seconds are over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def on_step_end(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
        if time.monotonic() > self.end:
            control.should_training_stop = True


class BestEpoch(transformers.TrainerCallback):
    """Keeps the scores of the epoch, or of the end, that is best on the dev rows."""

    def __init__(self, features: Features, dev: np.ndarray, rows: list[dict[str, Any]]) -> None:
        self.features, self.dev, self.rows = features, dev, rows
        self.best, self.scores = -1.0, np.zeros((len(rows), len(features.classes)))
        self.trainer: transformers.Trainer | None = None

    def look(self) -> None:
        assert self.trainer is not None
        scores = np.asarray(self.trainer.predict(self.rows).predictions)  # pyright: ignore
        chosen = scores[self.dev].argmax(axis=1)
        predicted = np.array(self.features.classes)[chosen]
        f1 = f1_score(self.features.labels[self.dev], predicted, average="macro", zero_division=0)
        if f1 > self.best:
            self.best, self.scores = float(f1), scores

    def on_epoch_end(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
        self.look()


def train_from_random(
    features: Features,
    rows: Sequence[int],
    dev: np.ndarray,
    *,
    size: str,
    minutes: float,
    max_length: int,
    seed: int,
) -> Iterator[Candidate]:
    """One candidate per learning rate, each with the epoch that is best on ``dev``."""
    source = features.source
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_documents(text, [*features.train, *source.unlabelled])
        kind = "blank" if source.tokens == "spaces" else "wordpiece"
        ownbert.learn_vocabulary(text, Path(folder) / "vocabulary", kind=kind)
        tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "vocabulary")
        encode = {"truncation": True, "max_length": max_length}
        number = {label: i for i, label in enumerate(features.classes)}
        train = [
            {
                **tokenizer(features.train[row], **encode),
                "labels": number[features.train_labels[row]],
            }
            for row in rows
        ]
        rest = [dict(tokenizer(text, **encode)) for text in features.texts]
        layers, hidden, heads = SIZES[size]
        config = BertConfig(
            vocab_size=len(tokenizer),
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            max_position_embeddings=max(512, max_length),
            num_labels=len(number),
        )
        for rate in RATES:
            transformers.set_seed(seed)
            arguments = transformers.TrainingArguments(
                str(Path(folder) / "out"),
                per_device_train_batch_size=BATCH,
                per_device_eval_batch_size=64,
                num_train_epochs=EPOCHS,
                learning_rate=rate,
                warmup_ratio=0.1,
                weight_decay=0.01,
                use_cpu=not torch.cuda.is_available(),
                seed=seed,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            )
            best = BestEpoch(features, dev, rest)
            deadline = Deadline(60 * minutes / len(RATES))
            trainer = transformers.Trainer(
                BertForSequenceClassification(config),
                arguments,
                train_dataset=train,  # pyright: ignore[reportArgumentType]
                processing_class=tokenizer,
                data_collator=DataCollatorWithPadding(tokenizer),
                callbacks=[best, deadline],
            )
            best.trainer = trainer
            trainer.train()
            best.look()
            yield Candidate(f"lr={rate:g}", best.scores)
