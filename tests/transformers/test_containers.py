"""``speed_up`` of what contains an encoder of Transformers."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import ownbert
from ownbert.transformers.encoder_call import FastEncoder
from ownbert.transformers.speed_up import _encoders

transformers = pytest.importorskip("transformers")

TEXTS = ["ein roter ball", "ein", "der ball ist rot und der hund ist gross", "hund ball rot", ""]
WORDS = sorted({word for text in TEXTS for word in text.split()})
CLOSE = {"atol": 2e-5, "rtol": 2e-4}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random model with labels, and its tokenizer."""
    vocab = tmp_path / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab.write_text("\n".join([*special, *WORDS]), encoding="utf-8")
    config = transformers.BertConfig(
        vocab_size=len(special) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    transformers.BertTokenizer(str(vocab)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _fast(module: Any) -> FastEncoder:
    return next(_encoders[part] for part in module.modules() if part in _encoders)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "weightedmean", "lasttoken"])
def test_sentence_transformer(folder: Path, pooling: str):
    st = pytest.importorskip("sentence_transformers")
    models = pytest.importorskip("sentence_transformers.models")
    body = models.Transformer(str(folder))
    theirs = st.SentenceTransformer(modules=[body, models.Pooling(16, pooling_mode=pooling)])
    fast = copy.deepcopy(theirs)
    ownbert.speed_up(torch.nn.ModuleDict({"student": fast}))  # a loss contains one, too
    for _ in range(3):
        vectors = fast.encode(TEXTS)
    torch.testing.assert_close(vectors, theirs.encode(TEXTS), **CLOSE)
    assert _fast(fast).calls == 3
    assert _fast(fast).skips_padding
    tokens = fast.encode(TEXTS, output_value="token_embeddings")
    for ours, expected in zip(
        tokens, theirs.encode(TEXTS, output_value="token_embeddings"), strict=True
    ):
        torch.testing.assert_close(ours, expected, **CLOSE)
    # Training, after which the vectors change.
    loss = pytest.importorskip("sentence_transformers.losses").CosineSimilarityLoss
    for model in (theirs, fast):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        features = [model.tokenize(TEXTS[:3]), model.tokenize(TEXTS[1:4])]
        loss(model)(features, torch.tensor([0.1, 0.5, 1.0])).backward()
        optimizer.step()
    torch.testing.assert_close(fast.encode(TEXTS), theirs.encode(TEXTS), **CLOSE)


def test_cross_encoder(folder: Path):
    st = pytest.importorskip("sentence_transformers")
    theirs, fast = (st.CrossEncoder(str(folder)) for _ in range(2))
    ownbert.speed_up(fast)
    pairs = [(TEXTS[0], text) for text in TEXTS]
    torch.testing.assert_close(fast.predict(pairs), theirs.predict(pairs), **CLOSE)
    assert _fast(fast.model).calls == 1


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    ("task", "inputs"),
    [
        ("text-classification", TEXTS),
        ("token-classification", TEXTS[:4]),
        ("fill-mask", ["ein [MASK] ball", "der [MASK]"]),
        ("feature-extraction", TEXTS),
        ("question-answering", {"question": TEXTS[0], "context": TEXTS[2]}),
    ],
)
def test_pipelines(folder: Path, task: str, inputs: Any, batch_size: int):
    theirs, fast = (
        transformers.pipeline(task, str(folder), batch_size=batch_size) for _ in range(2)
    )
    fast.model.load_state_dict(theirs.model.state_dict())
    ownbert.speed_up(fast)
    assert _close(fast(inputs), theirs(inputs))
    assert _fast(fast.model).calls


def _close(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_close(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_close, ours, theirs))
    if isinstance(theirs, str) or theirs is None:
        return ours == theirs
    return abs(float(ours) - float(theirs)) < 1e-4


def _rows(tokenizer: Any) -> list[dict[str, Any]]:
    return [{**tokenizer(text), "labels": i % 2, "text": text} for i, text in enumerate(TEXTS * 4)]


def test_trainer(folder: Path, tmp_path: Path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    results = []
    for fast in (False, True):
        model = transformers.BertForSequenceClassification.from_pretrained(folder)
        if fast:
            ownbert.speed_up(model)
        output = str(tmp_path / str(fast))
        arguments: dict[str, Any] = {
            "report_to": "none",
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_steps": 3,
            "seed": 1,
        }

        def train(steps: int, resume: bool) -> Any:
            trainer = transformers.Trainer(
                model,  # noqa: B023
                transformers.TrainingArguments(output, max_steps=steps, **arguments),  # noqa: B023
                train_dataset=_rows(tokenizer),
                eval_dataset=_rows(tokenizer),
                processing_class=tokenizer,
            )
            trainer.train(resume_from_checkpoint=resume)
            return trainer

        train(3, False)
        trainer = train(6, True)
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        results.append([*losses, trainer.evaluate()["eval_loss"]])
    assert _fast(model).calls == 9
    assert not _fast(model).reasons
    assert len(results[0]) == 7
    torch.testing.assert_close(*map(torch.tensor, results), atol=2e-3, rtol=1e-3)


@pytest.mark.slow
def test_setfit_trains_predicts_saves_and_loads(folder: Path, tmp_path: Path):
    setfit = pytest.importorskip("setfit")
    datasets = pytest.importorskip("datasets")
    models = pytest.importorskip("sentence_transformers.models")
    st = pytest.importorskip("sentence_transformers")
    body = models.Transformer(str(folder))
    st.SentenceTransformer(modules=[body, models.Pooling(16)]).save(str(tmp_path / "body"))
    texts = [text or "hund" for text in TEXTS]
    rows = datasets.Dataset.from_dict({"text": texts * 2, "label": [0, 1] * len(texts)})
    results = []
    for fast in (False, True):
        torch.manual_seed(0)
        model = setfit.SetFitModel.from_pretrained(str(tmp_path / "body"), device="cpu")
        if fast:
            assert ownbert.speed_up(model) is model
        output = str(tmp_path / str(fast))
        arguments = setfit.TrainingArguments(
            output_dir=output, num_iterations=2, batch_size=4, report_to="none", seed=1
        )
        setfit.Trainer(model=model, args=arguments, train_dataset=rows).train()
        model.save_pretrained(output)
        read = setfit.SetFitModel.from_pretrained(output, device="cpu")
        results += [torch.as_tensor(each.predict_proba(texts)) for each in (model, read)]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=2e-3, rtol=1e-3)
    assert _fast(model.model_body).skips_padding
    assert not _fast(model.model_body).reasons
