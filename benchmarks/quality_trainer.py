"""Transformers' own Trainer from random weights, a baseline of benchmarks/quality.py.

A BERT of the given size learns the labelled rows of a draw for the given minutes, shared equally
by the learning rates that are tried; rate and step are chosen by macro-F1 on the dev rows. The
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
from ownbert.config.encoder import SIZES

RATES = (3e-4, 1e-3)
LOOKS = 10  # evaluations of a run
BATCH = 16


class Clock(transformers.TrainerCallback):
    """Ends training when its seconds are over, and keeps the scores that are best on the dev rows
    among ten looks on the way. The time of the looks does not count.

    Args:
        features: of the set.
        dev: the evaluated rows that choose.
        rows: encoded evaluated rows.
        seconds: of training.
    """

    def __init__(
        self, features: Features, dev: np.ndarray, rows: list[dict[str, Any]], seconds: float
    ) -> None:
        self.features, self.dev, self.rows, self.seconds = features, dev, rows, seconds
        self.best, self.scores = -1.0, np.zeros((len(rows), len(features.classes)))
        self.start, self.looks = time.monotonic(), 0
        self.trainer: transformers.Trainer | None = None

    def rate(self, step: int) -> float:
        """The share of the learning rate: 50 steps of warm-up, then down to 0 at the end."""
        elapsed = (time.monotonic() - self.start) / self.seconds
        return min(1.0, (step + 1) / 50) * max(0.0, 1 - elapsed)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        elapsed = (time.monotonic() - self.start) / self.seconds
        if elapsed >= (self.looks + 1) / LOOKS:
            self.looks = int(elapsed * LOOKS)
            self._look()
        control.should_training_stop = elapsed >= 1

    def _look(self) -> None:
        assert self.trainer is not None
        start = time.monotonic()
        scores = np.asarray(self.trainer.predict(self.rows).predictions)  # pyright: ignore
        predicted = np.array(self.features.classes)[scores[self.dev].argmax(axis=1)]
        f1 = f1_score(self.features.labels[self.dev], predicted, average="macro", zero_division=0)
        if f1 > self.best:
            self.best, self.scores = float(f1), scores
        self.start += time.monotonic() - start


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
    """One candidate per learning rate, each with the step that is best on ``dev``."""
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
                max_steps=10**6,  # the clock ends it
                use_cpu=not torch.cuda.is_available(),
                seed=seed,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            )
            model = BertForSequenceClassification(config)
            clock = Clock(features, dev, rest, 60 * minutes / len(RATES))
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
            clock.trainer = trainer = transformers.Trainer(
                model,
                arguments,
                train_dataset=train,  # pyright: ignore[reportArgumentType]
                processing_class=tokenizer,
                data_collator=DataCollatorWithPadding(tokenizer),
                callbacks=[clock],
                optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, clock.rate)),
            )
            clock.start = time.monotonic()
            trainer.train()
            yield Candidate(f"lr={rate:g}", clock.scores)
