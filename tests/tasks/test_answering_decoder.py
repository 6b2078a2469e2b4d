"""T5 whose decoder reads the text again and answers: prediction, training and folders, beside
Transformers 4.57.6."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", "4.57")
pytest.importorskip("sentencepiece")

from ownbert import Embedder, InputError, finetune  # noqa: E402
from ownbert.batches.batch import pack  # noqa: E402
from ownbert.batches.example import Example  # noqa: E402
from ownbert.checkpoint import describe, load, save  # noqa: E402
from ownbert.inference.engines import Compute  # noqa: E402
from ownbert.inference.open_folder import open_folder  # noqa: E402
from ownbert.inference.pipeline import Predictor  # noqa: E402
from ownbert.inspect.describe import describe as describe_model  # noqa: E402
from ownbert.nn.model import Model  # noqa: E402
from ownbert.tasks.rows import Row  # noqa: E402
from ownbert.train.log import read_log  # noqa: E402
from ownbert.train.loop import Callbacks  # noqa: E402
from ownbert.train.state import newest_state  # noqa: E402
from support.floats import assert_close  # noqa: E402
from support.tokenizer_folders import SNIPPETS, t5_folder  # noqa: E402

CLASSES, ANSWERS = "T5ForSequenceClassification", "T5ForQuestionAnswering"
LABELS = ("neg", "neu", "pos")
SIZES: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
}
TEXTS = ["The quick brown fox", "dog", "Où est la bibliothèque? Ça va très bien, merci.", "tokens"]


class EndedError(Exception):
    pass


Make = Callable[..., tuple[Any, Path]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return transformers.T5TokenizerFast.from_pretrained(t5_folder(tmp_path_factory.mktemp("t5")))


@pytest.fixture
def make(tokenizer: Any, tmp_path: Path) -> Make:
    """Theirs with random weights, and its folder."""

    def folder(architecture: str, name: str = "theirs", **changes: Any) -> tuple[Any, Path]:
        torch.manual_seed(len(architecture))
        config = transformers.T5Config(vocab_size=len(tokenizer) + 3, **(SIZES | changes))
        model = getattr(transformers, architecture)(config).eval()
        for key, weight in model.named_parameters():
            norm = weight.ndim == 1 and key.endswith("weight")
            weight.data = torch.randn_like(weight) * 0.25 + norm
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return model, tmp_path / name

    return folder


def named(labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def their_logits(model: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer(texts, padding=True, return_tensors="pt")).logits


KINDS: list[tuple[str, dict[str, Any], Any]] = [
    ("classify", named(LABELS), lambda x: x.softmax(-1)),
    ("classify", {"feed_forward_proj": "gated-gelu", "num_labels": 2}, lambda x: x.softmax(-1)),
    ("multilabel", {"problem_type": "multi_label_classification"} | named(LABELS), torch.sigmoid),
    ("regress", {"num_labels": 1, "decoder_start_token_id": 5}, lambda x: x),
]


@pytest.mark.parametrize(("task", "changes", "answers"), KINDS)
def test_the_same_probabilities(
    make: Make, tokenizer: Any, tmp_path: Path, task: str, changes: dict[str, Any], answers: Any
):
    theirs, folder = make(CLASSES, **changes)
    texts = [text for text in SNIPPETS if text.strip() and "<" not in text][:30]
    predictor = open_folder(folder)
    assert predictor.task.name == task
    raws, _ = predictor.raws([Row(i, (text,)) for i, text in enumerate(texts)])
    expected = answers(their_logits(theirs, tokenizer, texts)).double()
    assert_close(
        torch.from_numpy(np.stack(raws)).double().reshape(expected.shape), expected, rtol=1e-5
    )
    rough, _ = open_folder(folder, Compute(precision="bfloat16")).raws([Row(0, (texts[0],))])
    np.testing.assert_allclose(rough[0], raws[0], rtol=0.1, atol=0.1)
    pair, _ = predictor.raws([Row(1, ("a dog", "Ça va"))])
    given = tokenizer("a dog", "Ça va", return_tensors="pt")
    with torch.no_grad():
        other = answers(theirs(**given).logits)[0].double()
    assert_close(torch.from_numpy(pair[0]).double().reshape(other.shape), other, rtol=1e-5)
    save(load(describe(folder, with_decoder=True)), tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    logits = [their_logits(model, tokenizer, texts) for model in (again.eval(), theirs)]
    assert_close(*logits, rtol=1e-5)
    assert again.config.id2label == theirs.config.id2label


def test_the_same_spans(make: Make, tokenizer: Any, tmp_path: Path):
    theirs, folder = make(ANSWERS, num_decoder_layers=1)
    question, context = "Où est la bibliothèque?", "The quick brown fox jumps over the lazy dog"
    predictor = Predictor(folder)
    given = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")[0]
    with torch.no_grad():
        out = theirs(**given)
    expected = torch.stack((out.start_logits[0], out.end_logits[0]), -1)
    raws, _ = predictor.rows_predictor.raws([Row(1, (question, context)), Row(2, ("a", "b c"))])
    assert_close(torch.from_numpy(raws[0]), expected, rtol=1e-5)
    found: Any = predictor(question=question, context=context)
    inside = given.sequence_ids(0)
    spans = [
        (expected[i, 0] + expected[j, 1], i, j)
        for i in range(len(inside))
        for j in range(i, len(inside))
        if inside[i] == inside[j] == 1 and offsets[i, 1] and offsets[j, 1]
    ]
    _, first, last = max(spans)
    assert found["answer"] == context[offsets[first, 0] : offsets[last, 1]].strip()
    save(load(describe(folder, with_decoder=True)), tmp_path / "ours")
    saved = [load_file(where / "model.safetensors") for where in (folder, tmp_path / "ours")]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["architectures"] == [ANSWERS]


def logits_of(model: Model, texts: list[list[int]]) -> torch.Tensor:
    examples = [Example(np.array(ids), np.zeros(len(ids))) for ids in texts]
    with torch.no_grad():
        return next(iter(model(pack(examples)).logits.values()))


def test_a_neighbour_changes_nothing(make: Make):
    _, folder = make(CLASSES, **named(LABELS))
    model = load(describe(folder, with_decoder=True))
    text = [9, 30, 31, 7, 12, 1]
    alone = logits_of(model, [text])[0]
    for others in ([[5, 1]], [[8] * 20 + [1], [4, 4, 1]]):
        assert_close(logits_of(model, [others[0], text, *others[1:]])[1], alone, rtol=1e-6)
    same = [logits_of(model, [text, [token] * 5 + [1]])[0] for token in (3, 40)]
    assert torch.equal(*same)
    # All of the text is read before the first token is written, and its order counts.
    assert not torch.allclose(logits_of(model, [text[:1], text])[0], alone)
    assert not torch.allclose(logits_of(model, [[30, 9, *text[2:]]])[0], alone)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    words = ("fox", "dog", "tokens", "quick", "merci", "words")
    rng = np.random.default_rng(0)
    lines = ["text,label"]
    for number in range(36):
        label = LABELS[number % 3]
        sign = {"neg": "dog dog", "neu": "quick", "pos": "merci merci"}[label]
        lines.append(f"{' '.join(rng.choice(words, rng.integers(1, 6)))} {sign},{label}")
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "train.csv"


def tune(model: Path, rows: Path, output: Path, **options: Any) -> Any:
    known = {"epochs": 5, "learning_rate": 3e-3, "log_every": 1, "quiet": True}
    return finetune(model=model, train=rows, output=output, **(known | options))


def test_training_goes_on_and_resumes(make: Make, tokenizer: Any, rows: Path, tmp_path: Path):
    _, folder = make(CLASSES, **named(LABELS))
    tune(folder, rows, tmp_path / "whole", save_every=5)
    losses = [row["loss"] for row in read_log(tmp_path / "whole") if "loss" in row]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])

    def stop(folder: Path, row: Any) -> None:
        raise EndedError

    with pytest.raises(EndedError):
        tune(folder, rows, tmp_path / "parts", save_every=5, callbacks=Callbacks(on_save=stop))
    assert newest_state(tmp_path / "parts") is not None
    tune(folder, rows, tmp_path / "parts", save_every=5, resume=True)
    saved = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert saved[0] == saved[1]
    tables = [
        load_file(where / "model.safetensors")["transformer.shared.weight"]
        for where in (folder, tmp_path / "whole")
    ]
    learnt = (tables[0] != tables[1]).any(1).nonzero().flatten().tolist()
    texts = [line.split(",")[0] for line in rows.read_text().splitlines()[1:]]
    # The words of the texts, and what the decoder reads first.
    assert learnt == sorted({0, *(i for ids in tokenizer(texts).input_ids for i in ids)})
    theirs, info = getattr(transformers, CLASSES).from_pretrained(
        tmp_path / "whole", output_loading_info=True
    )
    assert not any(info.values())
    predictor = open_folder(tmp_path / "whole")
    raws, _ = predictor.raws([Row(i, (text,)) for i, text in enumerate(TEXTS)])
    expected = their_logits(theirs.eval(), tokenizer, TEXTS).softmax(-1)
    assert_close(torch.from_numpy(np.stack(raws)), expected, rtol=1e-5)
    assert "T5" in theirs.config.architectures[0]
    assert (tmp_path / "whole" / "README.md").exists()


def test_an_encoder_is_not_given_a_decoder(make: Make, rows: Path, tmp_path: Path):
    """Of a T5 that writes, the encoder alone learns to classify, as before."""
    _, folder = make("T5ForConditionalGeneration")
    model = tune(folder, rows, tmp_path / "it", epochs=1)
    assert model.decoder is None
    assert model.specs["classification"].pooling == "mean"


def test_a_span_is_learnt_from_a_classifier(make: Make, tmp_path: Path):
    _, folder = make(CLASSES)
    context = "The quick brown fox jumps"
    gold = {"text": ["fox"], "answer_start": [context.index("fox")]}
    row = {"id": "1", "question": "who?", "context": context, "answers": gold}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    options = {"task": "answer", "epochs": 1, "quiet": True}
    model: Any = finetune(
        model=folder, train=tmp_path / "q.jsonl", output=tmp_path / "it", **options
    )
    assert [*model.specs] == ["span"]
    config = json.loads((tmp_path / "it" / "config.json").read_text())
    assert config["architectures"] == [ANSWERS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": 1}, "model.freeze is for models without a decoder"),
        ({"layer_gate": "sum"}, "model.layer_gate is for models without a decoder"),
        ({"pooling": "mean"}, "a head whose pooling is last, not mean"),
        ({"ngrams": 100}, "a head whose ngrams is None, not 100"),
        ({"long": "segments"}, "a head whose segments is None, not attention"),
        ({"pretrain_steps": 2}, "BERT"),
        ({"task": "tag"}, "has a head for classification or span, not for tokens"),
        ({"task": "embed"}, "has a head for classification or span, not"),
    ],
)
def test_what_it_cannot_be_trained_for(
    make: Make, rows: Path, tmp_path: Path, options: dict[str, Any], message: str
):
    _, folder = make(CLASSES, **named(LABELS))
    with pytest.raises(InputError, match=message) as error:
        tune(folder, rows, tmp_path / "it", **options)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "it").exists()


def test_the_parameters_of_both_stacks(make: Make):
    theirs, folder = make(CLASSES, feed_forward_proj="gated-gelu")
    found = describe_model(folder)
    assert found.parameters == sum(weight.numel() for weight in theirs.parameters())
    groups = {group.name: group.times for group in found.groups}
    assert (groups["2 blocks"], groups["decoder: 3 blocks"]) == (2, 3)
    assert "decoder: embeddings" not in groups
    assert "3 layers; a token attends to itself, to those before it" in str(found)
    with pytest.raises(
        InputError, match="the model has a decoder: shapes are only shown for models"
    ):
        describe_model(folder, tokens=4)


def test_what_is_refused_of_a_folder(make: Make, tmp_path: Path):
    _, folder = make(CLASSES)
    with pytest.raises(InputError, match="predicts with its decoder, which is not supported here"):
        load(folder)
    with pytest.raises(InputError, match="predicts with its decoder"):
        Embedder(folder)
    with pytest.raises(InputError, match="which only torch supports; omit engine"):
        open_folder(folder, Compute(engine="onnx"))
    config = json.loads((folder / "config.json").read_text())
    for key, value in {"decoder_start_token_id": 9999, "eos_token_id": [1, 2]}.items():
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(InputError, match=f"{key} is .*; one token of the vocabulary is need"):
            open_folder(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_decoder_layers": 2}))
    with pytest.raises(InputError, match=r"unexpected tensor .*decoder\.block\.2"):
        open_folder(folder)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    del tensors["classification_head.dense.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="missing tensor"):
        open_folder(folder)
