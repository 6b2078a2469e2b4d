"""Engines: the answers of exported files against those of torch, and what is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ownbert
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.inference.embedder import Embedder
from ownbert.inference.engines import KINDS, PARITY, Compute
from ownbert.inference.exported_network import ENGINE_POSITIONS, FEW_TOKENS, groups_by_length
from ownbert.inference.fill_mask import Filled, Filler, fill
from ownbert.inference.pipeline import Predictor
from ownbert.nn.model import Model
from ownbert.serve.exchange import Refusal
from ownbert.serve.served_model import ServedModel
from ownbert.tasks.embed import EmbeddingTask
from ownbert.tasks.task import KEY
from support.cli import printed_rows, refusal, run_cli
from support.tiny import LABELS, TOKENIZER, change_weights

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("openvino")
pytestmark = pytest.mark.usefixtures("whole_processor")

CONFIG = EncoderConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=24,
)
TEXTS = ["a b c", "", "d", "e f a b c d e f a", "c c c c", "f"]
WINDOWS = {"long": "windows", "window": 8, "stride": 1, "max_windows": 4}
# By task: its head, further keys of config.json, rows.
TASKS: dict[str, tuple[str | HeadSpec, dict[str, Any], Any]] = {
    "classify": ("classification", {}, TEXTS),
    "windows": ("classification", {KEY: {"name": "classify", "settings": WINDOWS}}, TEXTS),
    "multilabel": ("classification", {"problem_type": "multi_label_classification"}, TEXTS),
    "regress": ("classification", {"problem_type": "regression"}, TEXTS),
    "tag": ("tokens", {}, TEXTS),
    "crf": (HeadSpec("tokens", crf=True), {}, TEXTS),
    "answer": (
        "span",
        {},
        {"question": ["a b", "c"], "context": ["d e f a b c d e f", "b a b a b a " * 6]},
    ),
    "choose": (
        "choice",
        {},
        {"prompt": ["a", "b c"], "choices": [["d", "e f a"], ["a", "b", "c d e"]]},
    ),
    "embed": ("", {}, {"text": ["a b", "c"], "text_pair": ["a b c d", "e"]}),
}


def made(folder: Path, name: str) -> Path:
    """A tiny folder for a task, with random weights."""
    head, values, _ = TASKS[name]
    torch.manual_seed(0)
    model = Model(CONFIG, [head] if head else [], labels=LABELS)
    for parameter in model.parameters():
        parameter.data.normal_()
    save(model, folder, tokenizer=TOKENIZER, values=values)
    if name == "embed":
        EmbeddingTask().write(folder, model)
    return folder


def numbers(answers: Any) -> tuple[list[float], Any]:
    """The numbers of answers, and the answers without them."""
    if isinstance(answers, dict):
        found = {key: numbers(value) for key, value in answers.items()}
        return [x for own, _ in found.values() for x in own], {k: r for k, (_, r) in found.items()}
    if isinstance(answers, list | tuple):
        several = [numbers(value) for value in answers]
        return [x for own, _ in several for x in own], [rest for _, rest in several]
    return ([answers], None) if isinstance(answers, float) else ([], answers)


def same(one: Any, two: Any) -> None:
    (ours, rest), (theirs, expected) = numbers(one), numbers(two)
    assert rest == expected
    assert ours
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_answers_the_same_with_every_engine(name: str, tmp_path: Path):
    folder, rows = made(tmp_path / "model", name), TASKS[name][2]
    expected = Predictor(folder)(rows)
    for engine in KINDS:
        ownbert.export(folder, folder / engine, engine)
        assert {path.name for path in (folder / engine).iterdir()} >= {KINDS[engine].file, PARITY}
        found = Predictor(folder, engine=engine)
        assert [choice.name for choice in found.rows_predictor.engines] == [engine]
        same(found(rows), expected)
        if name == "embed":
            embedder = Embedder(folder, engine=engine)
            vectors = embedder.encode(TEXTS)
            np.testing.assert_allclose(vectors, Embedder(folder).encode(TEXTS), atol=1e-5)
            assert embedder.model is None


@pytest.fixture
def both(exported: Path, tmp_path: Path) -> Path:
    """A classifier with files for both engines beside its weights."""
    import openvino

    folder = tmp_path / "clf"
    shutil.copytree(exported / "classifier", folder)
    for engine, kind in KINDS.items():
        (folder / engine).mkdir()
        described = json.loads((exported / "onnx" / PARITY).read_text())
        if engine == "onnx":
            shutil.copy(exported / "onnx" / kind.file, folder / engine)
        else:
            # What ``write_openvino`` does with the same graph.
            model = openvino.Core().read_model(exported / "onnx" / "model.onnx")
            openvino.save_model(model, folder / engine / kind.file, compress_to_fp16=False)
            parts = {path.name: path.stat().st_size for path in (folder / engine).iterdir()}
            described |= {"to": engine, "file": kind.file, "sizes": parts}
        (folder / engine / PARITY).write_text(json.dumps(described))
    return folder


def test_an_exported_folder_is_used_with_its_engine(exported: Path):
    texts = ["a b c", "", "d"]
    expected = printed_rows("predict", exported / "classifier", *texts, "--probabilities")
    found = printed_rows("predict", exported / "onnx", *texts, "--probabilities")
    same(found, expected)
    predictor = Predictor(exported / "onnx")
    assert [choice.name for choice in predictor.rows_predictor.engines] == ["onnx"]
    same(predictor("a b"), Predictor(exported / "classifier")("a b"))


def test_files_beside_the_weights(both: Path):
    expected = Predictor(both)(TEXTS)
    for engine in KINDS:
        same(Predictor(both, engine=engine)(TEXTS), expected)
    found = Predictor(both, engine="torch")
    assert [choice.name for choice in found.rows_predictor.engines] == ["torch"]


def test_auto_takes_an_engine_for_few_texts_and_torch_for_many(both: Path):
    predictor = Predictor(both, engine="auto")
    rows_predictor: Any = predictor.rows_predictor
    network = rows_predictor.networks[0]
    expected = Predictor(both)
    same(predictor("a b"), expected("a b"))
    long = "a b " * FEW_TOKENS
    same(predictor(long), expected(long))
    assert "_packed" not in vars(network)  # nothing was loaded for torch
    many = TEXTS * 10
    assert 3 * len(many) > FEW_TOKENS
    same(predictor(many), expected(many))
    assert "_packed" in vars(network)
    done = run_cli("predict", both, "a b", "--engine", "auto")
    assert done.stderr == "engine: openvino for single queries, torch for more\n"


SIGNAL = """
import gc, signal, sys
from pathlib import Path
from ownbert.inference.engines import open_openvino
arrived = []
signal.signal(signal.SIGTERM, lambda *about: arrived.append(about))
first, second = (open_openvino(Path(sys.argv[1])) for _ in range(2))
for name in ("first", "second"):
    del globals()[name]
    gc.collect()
signal.raise_signal(signal.SIGTERM)
print(len(arrived))
"""


def test_signals_arrive_after_engines_were_freed_in_any_order(both: Path):
    file = next(both.rglob("openvino_model.xml"))
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL, file], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_auto_says_why_it_takes_torch(exported: Path):
    done = run_cli("predict", exported / "classifier", "a b", "--engine", "auto")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert done.stderr.startswith("engine: torch; ")
    assert "ownbert export" in done.stderr


def test_refusals(exported: Path, both: Path, monkeypatch: pytest.MonkeyPatch):
    plain, onnx = exported / "classifier", exported / "onnx"
    cases = {
        (
            plain,
            "--engine",
            "jax",
        ): "engine 'jax' is not known; use one of auto, torch, onnx, openvino",
        (plain, "--engine", "onnx"): f"create it: ownbert export {plain} --to onnx -o {plain}/onnx",
        (onnx, "--engine", "openvino"): "was exported to onnx and has no file for openvino",
        (onnx, "--engine", "torch"): "was exported to onnx and has no file for torch",
        (onnx, "--device", "cuda"): "the engine onnx computes on the CPU",
        (onnx, "--precision", "bfloat16"): "the engine onnx computes in float32",
    }
    for (folder, *options), message in cases.items():
        assert message in refusal("predict", folder, "a b", *options)
    (both / "openvino" / PARITY).unlink()
    line = refusal("predict", both, "a", "--engine", "openvino")
    assert "was not written by ownbert export" in line
    change_weights(both, classifier__bias=torch.ones(3))
    line = refusal("predict", both, "a", "--engine", "onnx")
    assert "does not match the weights in" in line
    assert "--overwrite" in line
    with pytest.raises(InputError, match="does not match the weights in"):
        Embedder(both, engine="onnx")  # also if it lacks the output
    changed = replace(KINDS["openvino"], package="a_package_that_is_missing")
    monkeypatch.setitem(KINDS, "openvino", changed)
    line = refusal("predict", both, "a", "--engine", "openvino")
    assert "pip install 'ownbert[openvino]'" in line


def test_damaged_files(exported: Path, tmp_path: Path):
    folder = tmp_path / "onnx"
    shutil.copytree(exported / "onnx", folder)
    path, whole = folder / "model.onnx", (exported / "onnx" / "model.onnx").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "model.onnx is damaged: it has" in refusal("predict", folder, "a")
    path.write_bytes(bytes(len(whole)))
    assert "cannot be opened with onnx" in refusal("predict", folder, "a")
    path.unlink()
    assert "no such file" in refusal("predict", folder, "a")
    path.write_bytes(whole)
    described = json.loads((folder / PARITY).read_text())
    for changes, message in (
        ({"to": "torch"}, "which ownbert does not read"),
        ({"file": "../model.onnx"}, "../model.onnx"),
        ({"sizes": {"model.onnx": "many"}}, "it must be a whole number"),
    ):
        (folder / PARITY).write_text(json.dumps(described | changes))
        assert message in refusal("predict", folder, "a")


def test_a_file_of_another_head(exported: Path):
    with pytest.raises(InputError, match="has no output last_hidden_state, only logits"):
        Embedder(exported / "onnx").encode(["a"])


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for masked words with a file for onnxruntime beside its weights."""
    folder = tmp_path_factory.mktemp("masked")
    torch.manual_seed(0)
    model = Model(replace(CONFIG, num_hidden_layers=1), ["mlm", "nsp"])
    for parameter in model.parameters():
        parameter.data.normal_()
    save(model, folder, tokenizer=TOKENIZER)
    ownbert.export(folder, folder / "onnx", "onnx")
    return folder


def exported_alone(masked: Path, folder: Path) -> Path:
    """As the folder of an export to elsewhere."""
    shutil.copytree(masked / "onnx", folder, dirs_exist_ok=True)
    for path in masked.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, folder)
    return folder


def candidates(filled: Sequence[Filled]) -> list[Any]:
    return [[(c.id, c.probability) for c in mask.candidates] for f in filled for mask in f.masks]


@pytest.mark.slow
def test_masks_are_filled_the_same_with_an_engine(masked: Path, tmp_path: Path):
    texts = ["a [MASK] b [MASK]", "[MASK]", "c d e f a b c [MASK]", "a [MASK] c", "b [MASK]"]
    expected = list(Filler(masked, top=3)(texts))
    alone = exported_alone(masked, tmp_path)
    for folder, engine in ((masked, "onnx"), (alone, None)):
        filler = Filler(folder, top=3, engine=engine)
        assert filler.engine.name == "onnx"
        same(candidates(list(filler(texts))), candidates(expected))
        (two,) = filler(texts[:1], targets=[6, 5], top=1)
        assert [len(mask.candidates) for mask in two.masks] == [1, 1]
        assert {c.id for mask in two.masks for c in mask.candidates} <= {5, 6}
    done = run_cli("fill", masked, texts[1], "--engine", "auto", "--json", "--top", 3)
    assert done.stderr == "engine: onnx for single queries, torch for more\n"
    ours = json.loads(done.stdout)["masks"][0]["candidates"]
    same([(c["id"], c["probability"]) for c in ours], candidates(expected[1:2])[0])


@pytest.mark.slow
def test_texts_are_scored_the_same_with_an_engine(masked: Path, tmp_path: Path):
    texts = ["a b", "c d e f a b c", "f"]
    alone = exported_alone(masked, tmp_path)
    for passes in (2, 20):
        expected = [one.surprisals for one in ownbert.score(masked, texts, passes=passes)]
        for folder, engine in ((masked, "onnx"), (masked, "auto"), (alone, None)):
            found = ownbert.score(folder, texts, passes=passes, engine=engine)
            for one, own in zip(found, expected, strict=True):
                np.testing.assert_allclose(one.surprisals, own, rtol=1e-3, atol=1e-4)


def test_what_needs_another_output_leaves_the_file_aside(masked: Path, tmp_path: Path):
    texts = ["a b", "c"]
    vectors = Embedder(masked, engine="auto")
    assert vectors.engine.name == "torch"
    assert "has no output last_hidden_state" in vectors.engine.note
    np.testing.assert_allclose(vectors.encode(texts), Embedder(masked).encode(texts), atol=1e-6)
    line = refusal("embed", masked, "a", "--engine", "onnx")
    assert "has no output last_hidden_state, only prediction_logits" in line
    # A server fills the masks, and gives vectors where the weights are too.
    served = ServedModel("m", masked, Compute(engine="auto"))
    served.warm_up()
    assert served.operations == ["embed", "fill"]
    served = ServedModel("m", exported_alone(masked, tmp_path))
    served.warm_up()
    assert (served.operations, served.task, served.max_length) == (["fill"], "fill", 24)
    expected = fill(masked, "a [MASK]", top=2)
    same(candidates(served.fill(["a [MASK]"], top=2)), candidates(expected))
    with pytest.raises(Refusal, match="shows no attention"):
        served.attention_query("a", [0], None)


def test_metrics_count_the_padding_of_engines(exported: Path):
    pytest.importorskip("prometheus_client")
    from ownbert.serve.service import Metrics

    def share() -> float:
        return Metrics(lambda: 0, lambda: 0).registry.get_sample_value("ownbert_padding_share")

    tokens, padding = ENGINE_POSITIONS["tokens"], ENGINE_POSITIONS["padding"]
    texts = ["a", "a b c"]
    Predictor(exported / "classifier")(texts)
    assert (ENGINE_POSITIONS["tokens"], ENGINE_POSITIONS["padding"]) == (tokens, padding)
    Predictor(exported / "onnx")(texts)
    assert ENGINE_POSITIONS["tokens"] - tokens == 3 + 5
    assert ENGINE_POSITIONS["padding"] - padding == 2
    assert share() == ENGINE_POSITIONS["padding"] / ENGINE_POSITIONS.total() > 0


def test_groups_have_little_padding_and_every_sequence_once():
    lengths = np.random.default_rng(0).geometric(0.02, 500)
    groups = list(groups_by_length(lengths))
    assert sorted(np.concatenate(groups).tolist()) == list(range(500))
    places = sum(len(group) * int(lengths[group].max()) for group in groups)
    assert places <= 1.15 * lengths.sum()
    assert len(groups) < 60


WITHOUT_TORCH = """
import sys
from ownbert.cli import main
try:
    main()
except SystemExit as end:
    sys.exit("imports torch" if "torch" in sys.modules else end.code)
"""


def test_an_exported_folder_is_used_without_torch(exported: Path):
    command = [sys.executable, "-c", WITHOUT_TORCH, "predict", str(exported / "onnx"), "a b"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["label"] in LABELS
