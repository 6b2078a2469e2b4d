"""``ownbert export``: the files, that they open elsewhere, and what is refused."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ownbert
from ownbert.batches.batch import from_padded
from ownbert.checkpoint import describe, load, save
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.exporting.export import FORMATS, PARITY, notes_of, require_near
from ownbert.exporting.padded import PaddedModel, named_outputs
from ownbert.exporting.parity import compare, sequences_of
from ownbert.files.writing import make_folder
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.embedder import Embedder
from ownbert.inference.engines import open_onnx
from ownbert.nn.model import Model
from ownbert.run.run_folder import complete_folder
from ownbert.tasks.task import restored_task
from ownbert.text.tokenizer import Tokenizer
from ownbert.vision import vit
from support.cli import refusal
from support.floats import assert_close
from support.parity_models import padded, their_model
from support.tiny import CONFIG, LABELS, SPECIAL, TOKENIZER, contents, made

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# Lengths of the texts of batches.
SHAPES = ((5, 2, 6, 1), (3,))
HEADS: dict[str, str | HeadSpec] = {
    "classification": "classification",
    "tokens": HeadSpec("tokens", crf=True),
    "span": "span",
    "choice": "choice",
    "mlm": "mlm",
    "nsp": "nsp",
    "ngrams": HeadSpec("classification", ngrams=64),
    "segments": HeadSpec("classification", pooling="attention", segments="attention"),
}


@pytest.fixture(scope="module")
def classifier(exported: Path) -> Path:
    return exported / "classifier"


def batch_of(lengths: tuple[int, ...]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(len(lengths))
    mask = (np.arange(max(lengths)) < np.asarray(lengths)[:, None]).astype(np.int64)
    ids = draw.integers(1, CONFIG.vocab_size, mask.shape) * mask
    types = draw.integers(0, 2, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def packed_outputs(folder: Path, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = load(folder)
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch, _ = from_padded(*(torch.from_numpy(given[name]) for name in names))
    with torch.no_grad():
        return {n: x.numpy() for n, x in named_outputs(tuple(model.heads), model(batch)).items()}


def same_outputs(file: Path, folder: Path, run: Any = open_onnx) -> None:
    """The file against the packed model, on batches of different shapes."""
    engine, graph = run(file), PaddedModel(load(folder))
    for lengths in SHAPES:
        given = batch_of(lengths)
        keep = given["attention_mask"] == 1
        shown = {n: x[None] for n, x in given.items()} if graph.choices else given
        found = engine(shown)
        for name, theirs in packed_outputs(folder, given).items():
            ours = found[name]
            ours = ours.reshape(theirs.shape) if graph.choices else ours
            ours = ours[keep] if graph.per_token(name) else ours
            assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), name=name)


def test_onnxruntime_computes_the_same(exported: Path, classifier: Path):
    same_outputs(exported / "onnx" / "model.onnx", classifier)


def test_what_stands_beside_the_file(exported: Path, classifier: Path):
    names = {path.name for path in (exported / "onnx").iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert names == {"model.onnx", "config.json", PARITY, "README.md", *tokenizer}
    for name in ("config.json", *tokenizer):
        assert (exported / "onnx" / name).read_bytes() == (classifier / name).read_bytes()
    found = json.loads((exported / "onnx" / PARITY).read_text())
    assert found["texts"] == 15
    assert found["largest_difference"] <= found["tolerance"] == 1e-3
    assert found["least_cosine"] > 0.9999
    assert set(found["outputs"]) == {"logits"}
    assert f"{found['largest_difference']:.2e}" in (exported / "onnx" / "README.md").read_text()
    file = (exported / "onnx" / "model.onnx").read_bytes()
    assert str(Path(ownbert.__file__).parent).encode() not in file


def test_the_card_shows_how_it_is_run(exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(exported)
    (shown,) = re.findall(
        "```python\n(.*?)```", (exported / "onnx" / "README.md").read_text(), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(shown, names)
    assert names["outputs"][0].shape == (2, len(LABELS))


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
def test_every_card_runs(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if to == "openvino":
        pytest.importorskip("openvino")
    made(tmp_path / "model", "choice")
    ownbert.export(tmp_path / "model", tmp_path / "out", to)
    monkeypatch.chdir(tmp_path)
    card = (tmp_path / "out" / "README.md").read_text()
    (shown,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(shown, names)
    found = names["outputs"]["logits"] if to == "torch" else names["outputs"][0]
    assert tuple(found.shape) == (1, 2)


def test_names_of_axes(exported: Path):
    import onnxruntime

    session = onnxruntime.InferenceSession(exported / "onnx" / "model.onnx")
    assert {tuple(one.shape) for one in session.get_inputs()} == {("batch", "length")}
    assert [(o.name, o.shape) for o in session.get_outputs()] == [("logits", ["batch", 3])]


def test_a_taken_output_is_kept(exported: Path, classifier: Path):
    before = contents(exported / "onnx")
    assert "already contains files" in refusal("export", classifier, "-o", exported / "onnx")
    assert contents(exported / "onnx") == before


def test_files_of_the_same_names_are_replaced(tmp_path: Path):
    output = tmp_path / "out"
    (output / "onnx").mkdir(parents=True)
    old = {"README.md": "mine", "model.pt2": "old", "other.txt": "other", "onnx/a": "old"}
    for name, text in (old | {"blend.json": "old", "ensemble.json": "old"}).items():
        (output / name).write_text(text)
    with complete_folder(output) as new:
        (new / "onnx").mkdir()
        for name in ("README.md", "model.pt2", "onnx/a", "onnx/b"):
            (new / name).write_text("new")
    changed = {"model.pt2": "new", "onnx/a": "new", "onnx/b": "new"}
    for name, text in (old | changed).items():
        assert (output / name).read_text() == text
    assert {path.name for path in output.iterdir()} == {*old, "onnx"} - {"onnx/a"}
    with pytest.raises(FileNotFoundError), complete_folder(tmp_path / "a" / "b") as new:
        (new / "missing" / "half").write_text("half")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with complete_folder(tmp_path / "link") as new:
        (new / "a").write_text("new")
    assert (tmp_path / "empty" / "a").read_text() == "new"


@pytest.mark.slow
def test_texts_of_a_file(tmp_path: Path):
    made(tmp_path / "model", "tokens")
    text = tmp_path / "texts.txt"
    text.write_text("a b c d\na\n\n")
    (tmp_path / "out").mkdir()
    parity = ownbert.export(tmp_path / "model", tmp_path / "out", "torch", data=text)
    assert (parity.texts, parity.source) == (3, "texts.txt")
    same_outputs(tmp_path / "out" / "model.pt2", tmp_path / "model", FORMATS["torch"].engine.open)


@pytest.mark.parametrize("head", ["choice", "span", "mlm", "nsp", "tokens"])
def test_a_file_that_is_wrong_is_found(head: str, tmp_path: Path):
    model = made(tmp_path, head)
    graph = PaddedModel(model)

    def engine(inputs: Mapping[str, np.ndarray], off: float = 0.0) -> dict[str, np.ndarray]:
        with torch.no_grad():
            found = graph(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        return {
            name: x.numpy() + off * np.cos(np.arange(x[0].numel())).reshape(x[0].shape)
            for name, x in found.items()
        }

    given = sequences_of(describe(tmp_path), model)
    right = compare(model, graph, engine, given)
    require_near(right, 1e-3, tmp_path)
    assert right.texts == 15
    assert right.least_cosine > 0.9999
    wrong = compare(model, graph, lambda inputs: engine(inputs, 5.0), given)
    assert wrong.largest_difference > 0.1
    assert wrong.least_cosine < 0.999
    with pytest.raises(InputError, match=r"is not written: .* more than tolerance=0.001"):
        require_near(wrong, 1e-3, tmp_path)
    lost = compare(model, graph, lambda inputs: engine(inputs, float("nan")), given)
    with pytest.raises(InputError, match="by up to nan"):
        require_near(lost, 1e-3, tmp_path)


def test_a_vocabulary_of_numbers_is_compared_on_its_own_tokens(tmp_path: Path):
    model = Model(replace(CONFIG, vocab_size=15), ["mlm"])
    save(model, tmp_path, tokenizer=Tokenizer.blank([*SPECIAL, *map(str, range(10))]))
    found = sequences_of(describe(tmp_path), model.eval())
    assert found.source == "random tokens of the vocabulary"
    assert len({i for e in found.examples for i in e.token_ids.tolist() if i > 4}) == 10


@pytest.mark.parametrize(
    ("head", "name", "content"),
    [
        ("mlm", "texts.txt", "hello\nworld\n"),
        ("classification", "rows.csv", "text\nhello\nworld\n"),
        ("choice", "rows.csv", "prompt,choice1,choice2\nhello,big,world\n"),
    ],
)
def test_texts_without_a_known_word_are_reported(
    head: str, name: str, content: str, tmp_path: Path
):
    model, path = made(tmp_path, head), tmp_path / name
    path.write_text(content)
    warning = sequences_of(describe(tmp_path), model, data=path).warning
    assert warning is not None
    assert (
        "100.0% of the tokens are [UNK]: the model's vocabulary contains no word of these"
        in warning
    )
    path.write_text(re.sub("hello|world|big", "a b", content))
    assert sequences_of(describe(tmp_path), model, data=path).warning is None


def test_a_folder_without_tokenizer(tmp_path: Path):
    model = Model(CONFIG, ["classification"], labels=LABELS)
    save(model, tmp_path)
    description = describe(tmp_path)
    found = sequences_of(description, model.eval())
    assert found.source == "random ids"
    assert len({len(e.token_ids) for e in found.examples}) > 3
    (tmp_path / "texts.txt").write_text("a")
    with pytest.raises(InputError, match="has no tokenizer, so texts cannot be read"):
        sequences_of(description, model, data=tmp_path / "texts.txt")


# What predict reads from each file: words without their tags, and all choices of a question.
ROWS = {
    "tokens": ("tags.conll", "a B-X\nb O\n\nc O\n", ["a b", "c"], ()),
    "choice": (
        "choose.jsonl",
        '{"prompt": "a", "choices": ["b", "c"], "label": 1}\n'
        '{"prompt": "d", "choices": ["e", "f", "a", "b"], "label": 0}\n',
        ["a b a c", "d e d f d a d b"],
        (2, 4),
    ),
}


@pytest.mark.parametrize("head", ROWS)
def test_rows_of_the_task(head: str, tmp_path: Path):
    name, content, texts, choices = ROWS[head]
    (tmp_path / name).write_text(content)
    model = made(tmp_path / "model", head, num_hidden_layers=1)
    found = sequences_of(describe(tmp_path / "model"), model, data=tmp_path / name)
    special = {*TOKENIZER.special.values()}
    tokens = [TOKENIZER.tokens(example.token_ids.tolist()) for example in found.examples]
    assert [" ".join(t for t in each if t not in special) for each in tokens] == texts
    assert tuple(len(e.parts) for e in found.examples if e.parts) == choices
    # The rows are compared alike in every format; of tags, in the one that takes the least time.
    to = "onnx" if choices else "torch"
    parity = ownbert.export(tmp_path / "model", tmp_path / "out", to, data=tmp_path / name)
    assert (parity.texts, parity.source) == (2, name)
    assert parity.least_cosine > 0.9999
    quantized = ownbert.quantize(tmp_path / "model", tmp_path / "int8", data=tmp_path / name)
    assert (quantized.texts, quantized.source) == (1, name)


def test_refusals(classifier: Path, tmp_path: Path):
    output = tmp_path / "out"
    before = contents(classifier)
    cases = {
        ("--to", "tflite"): "--to 'tflite' is not known; use one of onnx, openvino, torch",
        ("--tolerance", "0"): "tolerance is 0.0; it must be in (0, 1]",
        ("--data", str(tmp_path / "none.txt")): "none.txt",
    }
    for options, message in cases.items():
        assert message in refusal("export", classifier, "-o", output, *options)
    assert "is inside the folder of the model" in refusal(
        "export", classifier, "-o", classifier / "other"
    )
    assert "read by this command" in refusal("export", classifier, "-o", classifier)
    assert "-o is needed" in refusal("export", classifier)
    assert "no such folder" in refusal("export", tmp_path / "none", "-o", output)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "empty" in refusal("export", classifier, empty, "-o", output)
    assert contents(classifier) == before
    assert not output.exists()


def test_models_that_cannot_be_exported(tmp_path: Path):
    pytest.importorskip("openvino")
    sizes: dict[str, Any] = {"hidden_size": 8, "layers": 1, "heads": 2, "num_classes": 3}
    model = vit.make_model(image_size=8, patch_size=4, **sizes)
    save(model, tmp_path / "image")
    assert "only text encoders" in refusal("export", tmp_path / "image", "-o", tmp_path / "a")
    made(tmp_path / "gru", HeadSpec("classification", pooling="gru"))
    assert "recurrent pooling" in refusal("export", tmp_path / "gru", "-o", tmp_path / "b")
    made(tmp_path / "ngrams", HeadSpec("classification", ngrams=8))
    line = refusal("export", tmp_path / "ngrams", "-o", tmp_path / "c", "--to", "openvino")
    assert "support; use --to onnx or torch" in line
    for one in ("0", "1"):
        made(tmp_path / "several" / one, "classification")
    members = [{"folder": one} for one in ("0", "1")]
    (tmp_path / "several" / "ensemble.json").write_text(json.dumps({"members": members}))
    line = refusal("export", tmp_path / "several", "-o", tmp_path / "d")
    assert "contains 2 models, whose predictions are averaged" in line
    assert {path.name for path in tmp_path.iterdir()} == {"image", "gru", "ngrams", "several"}


def test_what_a_file_leaves_to_others_is_said(tmp_path: Path):
    model = made(tmp_path, "classification")
    assert not list(notes_of(tmp_path, model))
    task = restored_task("classify", {"pair": False}, LABELS)
    member = BlendMember("other", "network", ("other",), 1.0)
    make_folder(tmp_path / "other")
    Blend((member,), task, (0.0,) * len(LABELS)).write(tmp_path)
    assert "predicts with other models than the network" in next(iter(notes_of(tmp_path, model)))
    for name, said in (("tokens", "decoded jointly"), ("segments", "in segments")):
        model = made(tmp_path / name, HEADS[name])
        (note,) = notes_of(tmp_path / name, model)
        assert said in note


def test_a_missing_package_is_named():
    kind = replace(FORMATS["onnx"], packages=("json", "no_such_package"))
    with pytest.raises(InputError, match=r"no_such_package.*: pip install 'ownbert\[onnx\]'"):
        kind.require("onnx")


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", HEADS)
def test_every_head_in_every_format(to: str, name: str, tmp_path: Path):
    if to == "openvino":
        pytest.importorskip("openvino")
        if name == "ngrams":
            pytest.skip("OpenVINO has no numbers of 64 bits")
    made(tmp_path / "model", HEADS[name])
    parity = ownbert.export(tmp_path / "model", tmp_path / "out", to)
    assert parity.largest_difference < 1e-4
    same_outputs(
        tmp_path / "out" / FORMATS[to].engine.file, tmp_path / "model", FORMATS[to].engine.open
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("bert", "BertForSequenceClassification"),
        ("roberta", "RobertaForTokenClassification"),
        ("albert", "AlbertForMaskedLM"),
        ("distilbert", "DistilBertForQuestionAnswering"),
        ("electra", "ElectraForMultipleChoice"),
        ("mobilebert", "MobileBertForSequenceClassification"),
        ("ernie", "ErnieModel"),
    ],
)
def test_onnx_against_transformers(model_type: str, architecture: str, tmp_path: Path):
    theirs = their_model(model_type, architecture)
    theirs.save_pretrained(tmp_path / "model")
    ownbert.export(tmp_path / "model", tmp_path / "out")
    engine = open_onnx(tmp_path / "out" / "model.onnx")
    given = padded(theirs.config, architecture)
    graph = PaddedModel(load(tmp_path / "model"))
    keep = given["attention_mask"].bool()
    for rows in (slice(None), slice(2, 3)):
        shown = {name: given[name][rows] for name in graph.input_names}
        if "MultipleChoice" in architecture:
            shown = {name: x[:, None] for name, x in shown.items()}
        with torch.no_grad():
            expected = theirs(**shown)
        for name, ours in engine({n: x.numpy() for n, x in shown.items()}).items():
            pair = torch.from_numpy(ours), expected[name]
            assert_close(*(x[keep[rows]] if graph.per_token(name) else x for x in pair), name=name)


def sentence_model(folder: Path) -> None:
    made(folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    named = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(named))
    for _, path in modules[1:]:
        (folder / path).mkdir()
    mean = {"word_embedding_dimension": CONFIG.hidden_size, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mean))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')


@pytest.mark.slow
def test_a_sentence_model_as_sentence_transformers_reads_it(tmp_path: Path):
    sentence_model(tmp_path / "model")
    ownbert.export(tmp_path / "model", tmp_path / "out")
    files = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
    read = {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config.json"}
    assert files >= {"onnx/model.onnx", "tokenizer.json", *read}
    assert not any(name.endswith(".safetensors") for name in files)
    texts = ["a b c", "d", "e f a b c d"]
    encoded = [TOKENIZER.encode_batch([text])[0][:4] for text in texts]
    rows = [[TOKENIZER.cls_id, *ids, TOKENIZER.sep_id] for ids in encoded]
    given = batch_of(tuple(map(len, rows)))
    for i, row in enumerate(rows):
        given["input_ids"][i, : len(row)] = row
    given["token_type_ids"][:] = 0
    hidden = open_onnx(tmp_path / "out" / "onnx" / "model.onnx")(given)["last_hidden_state"]
    mask = given["attention_mask"][..., None]
    vectors = (hidden * mask).sum(1) / mask.sum(1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = Embedder(tmp_path / "model").encode(texts)
    assert_close(torch.from_numpy(vectors), torch.from_numpy(expected))


ALONE = """
import sys
sys.modules["ownbert"] = None
import numpy as np
ids = np.array([[2, 5, 6, 3], [2, 7, 3, 0]])
given = {"input_ids": ids, "attention_mask": (ids != 0).astype("int64")}
given["token_type_ids"] = np.zeros_like(ids)
folder = sys.argv[1]
"""
RUN = {
    "onnx": """
import onnxruntime
out = onnxruntime.InferenceSession(folder + "/model.onnx").run(None, given)[0]
""",
    "openvino": """
import openvino
out = openvino.Core().compile_model(folder + "/openvino_model.xml", "CPU")(given)[0]
""",
    "torch": """
import torch
run = torch.export.load(folder + "/model.pt2").module()
out = run(**{name: torch.from_numpy(x) for name, x in given.items()})["logits"]
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
def test_it_opens_without_ownbert(to: str, classifier: Path, tmp_path: Path):
    if to == "openvino":
        pytest.importorskip("openvino")
    ownbert.export(classifier, tmp_path / "out", to)
    script = f"{ALONE}{RUN[to]}print(tuple(out.shape))"
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "(2, 3)", done.stderr


@pytest.mark.slow
def test_beyond_the_tolerance_nothing_is_written(classifier: Path, tmp_path: Path):
    line = refusal("export", classifier, "-o", tmp_path / "new" / "out", "--tolerance", "1e-12")
    assert "more than --tolerance 1e-12" in line
    assert not any(tmp_path.iterdir())
