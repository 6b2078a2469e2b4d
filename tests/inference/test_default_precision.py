"""bfloat16 where a folder says that it agrees and the processor has it; else float32.

Which processor this is is chosen by what torch says of it: bfloat16 itself is computed everywhere.
"""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ownbert
from conftest import TOPICS, topic_text
from ownbert import InputError, embed, evaluate, finetune, merge, predict, pretrain
from ownbert.bulk.ray_runner import BulkJob
from ownbert.checkpoint import describe, load
from ownbert.checkpoint.description import agrees
from ownbert.exporting.export import copy_beside
from ownbert.exporting.quantize import quantize
from ownbert.finetuning.labelled_splits import LabelledSplits
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.engines import Compute
from ownbert.inference.open_folder import open_folder
from ownbert.inference.opened import describe_members
from ownbert.language import translated
from ownbert.run.packed_encoder import EACH_AGREES, check_vectors
from ownbert.tables.columns import ColumnNames
from ownbert.tasks import row_network as forward
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from support.cli import refusal, run_cli
from support.shared import made_once
from support.tiny import change_weights

KEY = "ownbert_precision"
OF_FOLDER = Compute(precision=None)


def settled(folder: Path, compute: Compute) -> Compute:
    return compute.settled(describe_members(folder))


def processor(monkeypatch: pytest.MonkeyPatch, *, native: bool) -> None:
    monkeypatch.setattr("ownbert.train.device.cpu_multiplies_bfloat16", lambda: native)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, native=True)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, native=False)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty labelled rows."""
    path, rng = tmp_path_factory.mktemp("rows") / "rows.csv", random.Random(5)
    texts = [f"{TOPICS[i % 3]},{topic_text(rng, TOPICS[i % 3], 2)}\n" for i in range(60)]
    path.write_text("label,text\n" + "".join(texts))
    return path


@pytest.fixture(scope="session")
def agreeing(
    pretrained: Path, topics: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A classifier that was made on a processor with bfloat16; do not write into it."""

    def make(folder: Path) -> None:
        given: dict[str, Any] = {"train": topics / "train.csv", "dev": rows, "quiet": True}
        with pytest.MonkeyPatch.context() as patch:
            processor(patch, native=True)
            finetune(model=pretrained, output=folder / "it", epochs=4, **given)

    return made_once(tmp_path_factory, "agreeing", make) / "it"


@pytest.fixture(scope="session")
def encoder(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained folder of which the vectors agree; do not write into it."""

    def make(folder: Path) -> None:
        given: dict[str, Any] = {"max_steps": 2, "max_length": 48, "batch_tokens": 512}
        given |= {"overrides": ["data.held_out=0.1"], "quiet": True}
        with pytest.MonkeyPatch.context() as patch:
            processor(patch, native=True)
            pretrain(topics / "tokens", folder / "it", **given)

    return made_once(tmp_path_factory, "encoder", make) / "it"


def values_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text()


def answered(folder: Path, rows: Path, output: Path, **options: Any) -> bytes:
    predict(folder, rows, output, **options)
    return output.read_bytes()


def test_a_folder_says_what_was_compared(agreeing: Path):
    value = values_of(agreeing)[KEY]
    assert value["bfloat16"] == "answers"
    assert [*value["weights"]] == ["model.safetensors"]
    assert agrees(describe(agreeing))
    assert "of 60 dev rows get the same prediction, with macro-F1 " in card_of(agreeing)
    assert "`ownbert predict` and `evaluate` use bfloat16 if the processor supports it." in card_of(
        agreeing
    )
    assert describe(agreeing).values[KEY] == value  # it is a key that is known


@pytest.mark.usefixtures("plain")
def test_without_bfloat16_nothing_is_compared(
    pretrained: Path, topics: Path, rows: Path, tmp_path: Path
):
    given: dict[str, Any] = {"train": topics / "train.csv", "dev": rows, "quiet": True}
    finetune(model=pretrained, output=tmp_path / "it", max_steps=1, **given)
    assert KEY not in values_of(tmp_path / "it")
    assert "In bfloat16" not in card_of(tmp_path / "it")


def test_predict_takes_it(
    agreeing: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    test, texts = topics / "test.csv", ["red1 red2 9", "blue1 w3 9", "green4 w1 w2 9"]
    processor(monkeypatch, native=True)
    named = {
        name: answered(agreeing, test, tmp_path / f"{name}.jsonl", precision=name)
        for name in ("float32", "bfloat16")
    }
    assert named["float32"] != named["bfloat16"]
    assert answered(agreeing, test, tmp_path / "out.jsonl") == named["bfloat16"]
    assert predict(agreeing, texts) == predict(agreeing, texts, precision="bfloat16")
    scores = evaluate(agreeing, test)
    assert scores.values == evaluate(agreeing, test, precision="bfloat16").values
    # One answer of a predictor does not depend on the others.
    predictor = ownbert.Predictor(agreeing)
    assert predictor(texts) == predict(agreeing, texts, precision="float32")
    assert predictor.rows_predictor.precision == "float32"
    processor(monkeypatch, native=False)
    assert answered(agreeing, test, tmp_path / "out.jsonl") == named["float32"]


@pytest.mark.usefixtures("native")
def test_the_command_says_so_once(
    agreeing: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    note = "note: bfloat16, which the model card allows; use --precision float32 for exact digits\n"
    for command in (["predict", agreeing, "red1 9"], ["evaluate", agreeing, topics / "test.csv"]):
        assert run_cli(*command).stderr == note
        assert run_cli(*command, "--quiet").stderr == ""
        assert run_cli(*command, "--precision", "auto").stderr == ""
    written = run_cli("predict", agreeing, topics / "test.csv", "-o", tmp_path / "a.csv")
    assert written.stderr == note
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    assert translated(note.strip()).startswith("提示：按模型卡采用 bfloat16")
    assert "每个都与 float32 一致。处理器支持时，" in translated(EACH_AGREES)


@pytest.mark.usefixtures("native")
def test_vectors(encoder: Path, agreeing: Path, tmp_path: Path):
    assert values_of(encoder)[KEY]["bfloat16"] == "vectors"
    assert "texts have cosines of at least 0.99" in card_of(encoder)
    assert "`ownbert embed` uses bfloat16 if the processor supports it." in card_of(encoder)
    texts = ["red1 red2 9", "blue1 w3 9"]
    found = embed(encoder, texts)
    assert np.array_equal(found, embed(encoder, texts, precision="bfloat16"))
    fine = embed(encoder, texts, precision="float32")
    assert not np.array_equal(found, fine)
    assert np.array_equal(ownbert.Embedder(encoder).encode(texts), fine)
    assert run_cli("embed", encoder, texts[0], "-q").stderr == ""
    assert run_cli("embed", encoder, texts[0]).stderr.startswith("note: bfloat16, which the model")
    # A classifier's answers agree; nothing is known of its vectors.
    assert run_cli("embed", agreeing, texts[0]).stderr == ""


def test_vectors_of_pairs(
    pretrained: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    processor(monkeypatch, native=True)
    rng = random.Random(0)
    pairs = [
        {"text": topic_text(rng, TOPICS[i % 3], 1), "text_pair": topic_text(rng, TOPICS[i % 3], 1)}
        for i in range(50)
    ]
    given: dict[str, Any] = {"model": pretrained, "train": pairs, "dev": pairs, "quiet": True}
    finetune("embed", output=tmp_path / "it", max_steps=1, **given)
    assert values_of(tmp_path / "it")[KEY]["bfloat16"] == "vectors"
    assert "the vectors of 100 texts have cosines of at least 0.99" in card_of(tmp_path / "it")
    assert OF_FOLDER.settled([describe(tmp_path / "it")], ("vectors",)).precision == "bfloat16"


@pytest.mark.usefixtures("native")
def test_numbers_agree_by_their_metric(pretrained: Path, rows: Path, tmp_path: Path):
    lines = [line.split(",")[1] for line in rows.read_text().splitlines()[1:]]
    table = [{"text": text, "value": float(len(text))} for text in lines]
    given: dict[str, Any] = {"model": pretrained, "train": table, "dev": table, "quiet": True}
    finetune("regress", output=tmp_path / "it", max_steps=8, **given)
    assert "In bfloat16, 60 dev rows have Spearman " in card_of(tmp_path / "it")


@pytest.mark.usefixtures("native")
def test_other_weights_say_nothing(
    agreeing: Path, encoder: Path, topics: Path, rows: Path, tmp_path: Path
):
    exact = Path(shutil.copytree(agreeing, tmp_path / "copy"))
    assert agrees(describe(exact))
    # As Transformers saves what it has trained further: with all keys of config.json.
    bias = load_file(exact / "model.safetensors")["classifier.bias"]
    change_weights(exact, classifier__bias=bias + 1)
    assert KEY in values_of(exact)
    assert not agrees(describe(exact))
    assert settled(exact, OF_FOLDER).precision == "float32"
    # What is written here has no such key.
    quantize(agreeing, tmp_path / "int8")
    ownbert.load(agreeing).save_pretrained(tmp_path / "api")
    (tmp_path / "export").mkdir()
    copy_beside(agreeing, tmp_path / "export", describe(agreeing))
    given: dict[str, Any] = {"train": topics / "train.csv", "quiet": True, "max_steps": 1}
    finetune(model=agreeing, output=tmp_path / "further", **given)
    finetune(model=encoder, output=tmp_path / "tuned", **given)
    options = ("--drop-layers", "1", "-o", tmp_path / "pruned")
    assert run_cli("heads", agreeing, rows, *options).returncode == 0
    for name in ("int8", "api", "export", "further", "tuned", "pruned"):
        assert KEY not in values_of(tmp_path / name), name


@pytest.mark.usefixtures("native")
def test_all_that_answer_must_agree(agreeing: Path, classifier: Path, tmp_path: Path):
    def ensemble(name: str, *members: Path) -> Path:
        for number, member in enumerate(members):
            shutil.copytree(member, tmp_path / name / f"m-{number}")
        listed = [{"folder": f"m-{number}"} for number in range(len(members))]
        (tmp_path / name / "ensemble.json").write_text(json.dumps({"members": listed}))
        return tmp_path / name

    both, one = ensemble("both", agreeing, agreeing), ensemble("one", agreeing, classifier)
    assert settled(both, OF_FOLDER).precision == "bfloat16"
    assert settled(one, OF_FOLDER).precision == "float32"
    task = open_folder(agreeing).task
    for folder, name in ((both, "bfloat16"), (one, "float32")):
        members = tuple(BlendMember(m, "network", (m,), 0.5) for m in ("m-0", "m-1"))
        Blend(members, task, (0.0,) * 3).write(folder)
        assert open_folder(folder, OF_FOLDER).compute.precision == name
        alone = replace(OF_FOLDER, network=True)  # there is none
        assert open_folder(folder, alone).compute.precision == "float32"
    assert predict(both, ["red1 9"]) == predict(both, ["red1 9"], precision="bfloat16")


@pytest.mark.usefixtures("native")
def test_the_card_of_an_ensemble(agreeing: Path, topics: Path, rows: Path, tmp_path: Path):
    given: dict[str, Any] = {"train": topics / "train.csv", "dev": rows, "quiet": True}
    finetune(model=agreeing, output=tmp_path / "it", seeds=2, max_steps=1, **given)
    assert all(agrees(describe(tmp_path / "it" / f"seed-{seed}")) for seed in (0, 1))
    assert EACH_AGREES in card_of(tmp_path / "it")
    assert settled(tmp_path / "it", OF_FOLDER).precision == "bfloat16"


@pytest.mark.usefixtures("native")
def test_only_torch_on_a_cpu_takes_it(agreeing: Path):
    assert settled(agreeing, OF_FOLDER).precision == "bfloat16"
    assert settled(agreeing, replace(OF_FOLDER, engine="torch")).precision == "bfloat16"
    for engine in ("onnx", "openvino", "auto"):
        assert settled(agreeing, replace(OF_FOLDER, engine=engine)).precision == "float32"
    assert settled(agreeing, Compute(precision="auto", engine="onnx")).precision == "auto"
    assert settled(agreeing, Compute()) == Compute(precision="float32", note="")
    with pytest.raises(InputError, match="device 'tpu' is not known"):
        settled(agreeing, replace(OF_FOLDER, device="tpu"))
    columns = ColumnNames()
    assert BulkJob("predict", str(agreeing), columns).open().compute.precision == "bfloat16"
    assert BulkJob("embed", str(agreeing), columns).open().compute.precision == "float32"


def test_one_file_has_one_precision(
    agreeing: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forward.blocks, "__defaults__", (16, 4_000_000, len))
    test, output = topics / "test.csv", tmp_path / "out.jsonl"

    def stop(count: int) -> None:
        if count == 32:
            raise KeyboardInterrupt

    processor(monkeypatch, native=True)
    with pytest.raises(KeyboardInterrupt):
        predict(agreeing, test, output, progress=stop)
    processor(monkeypatch, native=False)
    message = refusal("predict", agreeing, test, "-o", output, "--resume")
    assert (
        "the precision differs from that of the stopped run; continue with --precision bfloat16"
        in (message)
    )
    assert predict(agreeing, test, output, resume=True, precision="bfloat16") == 45
    whole = answered(agreeing, test, tmp_path / "whole.jsonl", precision="bfloat16")
    assert output.read_bytes() == whole
    # Shards on two kinds of processors are not joined.
    predict(agreeing, test, output, shard="1/2")
    processor(monkeypatch, native=True)
    predict(agreeing, test, output, shard="2/2")
    assert "precision; run the first again with --precision float32" in refusal("merge", output)
    predict(agreeing, test, output, shard="2/2", precision="float32")
    assert merge(output) == 45


def test_what_does_not_agree(agreeing: Path, rows: Path):
    predictor = open_folder(agreeing)
    task, model = predictor.task, load(agreeing)
    labelled = task.read(rows)
    splits = LabelledSplits(task, FinetuneRecipe(), (labelled, labelled), learnt=True)
    splits.encode(predictor.builder)
    assert splits.dev_data is not None
    splits.raws = predictor.raws_of(splits.dev_data)
    head: Any = model.heads["classification"]
    with torch.no_grad():  # as a model whose rounding is worse than any is
        head.dense.bias[0] += 100
    found = splits.check_bfloat16(model, "macro_f1")
    assert found is not None
    assert not found.agree
    assert found.sentences().endswith("`ownbert predict` and `evaluate` use float32.")
    splits.sample = range(49)
    assert splits.check_bfloat16(model, "macro_f1") is None


def test_vectors_need_some_texts(encoder: Path):
    texts = [np.arange(5, 12)] * 9
    assert check_vectors(encoder, texts) is None
    found = check_vectors(encoder, [*texts, texts[0]])
    assert found is not None
    assert found.agree
    assert "10 texts" in found.sentences()
