"""What users of other programs write works, or the line says what to write instead."""

import json
from pathlib import Path

import pytest
import torch

import ownbert
from ownbert import Embedder, InputError, OwnBertClassifier, Predictor
from ownbert.exceptions import in_short
from ownbert.train.distributed import join
from support.cli import refusal, run_cli
from support.tiny import LABELS, made


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["train", "x.csv"], "ownbert fit, ownbert pretrain or ownbert finetune TASK"),
        (["version"], "ownbert --version"),
        (["encode", "folder", "a text"], "ownbert embed"),
        (["classify", "x.csv"], "ownbert finetune classify to train, ownbert predict to use"),
        (["finetune", "text-classification"], "ownbert finetune classify"),
        (["finetune", "ner", "--help"], "ownbert finetune tag"),
        (
            ["finetune", "train.csv"],
            "name the task first, such as ownbert finetune classify --train",
        ),
        (
            ["finetune", "classify", "train.csv", "-o", "x"],
            "with their options, such as --train FILE",
        ),
        (["predict", "folder", "a", "--topk", "3"], "no such option: --topk"),
        (
            ["finetune", "--train", "x.csv"],
            "a command comes first, as in ownbert finetune classify",
        ),
        (["finetune", "nosuch", "--model", "mb"], "ownbert finetune has classify, multilabel, "),
        (["finetune", "classify", "--test", "x.csv"], "no such option: --test"),
        # What others call it is what it is here.
        (["evaluate", "folder", "--test", "x.csv"], "no such file: x.csv"),
        (["fit", "x.csv", "--max-minutes", "1"], "-o is needed"),
        (["pretrain", "--data", "nosuch", "optim.name=adamw", "--dry-run"], "no token store"),
        (["finetune", "classify", "--lr", "1", "--num_train_epochs", "3"], "-o is needed"),
    ],
)
def test_the_line_says_what_to_write(arguments: list[str], instead: str):
    done = run_cli(*arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert instead in done.stderr


def test_other_spellings_of_options(classifier: Path, tmp_path: Path):
    found = run_cli("predict", classifier, "red1 9", "--top", 2).stdout
    assert found
    for arguments in (
        ["--model", classifier, "red1 9", "--top_k=2"],
        [classifier, "--text", "red1 9", "--top-k", 2],
        ["--text", "red1 9", "--top", 2, f"--folder={classifier}"],
    ):
        done = run_cli("predict", *arguments)
        assert (done.returncode, done.stdout) == (0, found), done.stderr
    (tmp_path / "new.csv").write_text("label,content_column\nred,red1 9\n")
    done = run_cli("predict", classifier, tmp_path / "new.csv", "--text_column", "content_column")
    assert done.returncode == 0, done.stderr
    assert run_cli("predict", classifier, "--", "--top_k").returncode == 0


def test_texts_may_begin_with_a_minus_sign(tmp_path: Path):
    model = tmp_path / "-model"
    made(model, "classification")

    def texts(*arguments: object) -> list[str]:
        done = run_cli("predict", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["text"] for line in done.stdout.splitlines()]

    assert texts(model, "--text", "-1") == ["-1"]
    assert texts(model, "--text=--lr", "--top", 2, "--quiet") == ["--lr"]
    assert texts("--text", "--lr", "--model", "-model", "a", "--", "-b") == ["a", "--lr", "-b"]
    for command in ("predict", "embed", "explain"):
        assert f"as in ownbert {command} ... -- -1" in refusal(command, model, "-1")


@pytest.mark.parametrize("value", ["", " ", "1", "x", "-2", "9" * 400])
def test_an_environment_variable_is_empty_or_no_number(value: str, tmp_path: Path):
    made(tmp_path / "model", "classification")
    environment = {"WORLD_SIZE": value}
    assert run_cli("predict", tmp_path / "model", "a", env=environment).returncode == 0
    done = run_cli("pretrain", tmp_path / "none", "-o", tmp_path / "new", env=environment)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    refused = f"the environment variable WORLD_SIZE is {in_short(value)}; it must be" in done.stderr
    assert refused == (value.strip() not in ("", "1"))


def test_a_launcher_sets_all_of_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", ""), ("MASTER_ADDR", "x")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="WORLD_SIZE is 2, but RANK is not set; start with torch"):
        join(torch.device("cpu"))


def test_a_file_in_place_of_a_model_folder(tmp_path: Path):
    made(tmp_path / "model", "mlm")
    (tmp_path / "x.csv").write_text("text\na\n")
    for command in ("topics", "embed", "duplicates", "fill"):
        done = run_cli(command, "x.csv", "model/config.json", cwd=tmp_path)
        assert "give the folder ." not in done.stderr
    assert (
        "x.csv is a file, but a folder with a model"
        in run_cli("topics", "x.csv", cwd=tmp_path).stderr
    )
    done = run_cli("topics", "model/config.json", "x.csv", cwd=tmp_path)
    assert "model/config.json is a file; give the folder model" in done.stderr


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("AutoModelForObjectDetection", r"ownbert.load\(folder\)"),
        ("BertPreTrainedModel", r"transformers, and ownbert.speed_up\(model\)"),
        ("pipeline", r"ownbert.Predictor\(folder\)"),
        ("SentenceTransformer", r"ownbert.Embedder\(folder\)"),
        ("nix", "no attribute 'nix'$"),
    ],
)
def test_names_of_other_libraries(name: str, instead: str):
    with pytest.raises(AttributeError, match=instead):
        getattr(ownbert, name)


ROLES = {
    "train": ("train", "training"),
    "dev": ("dev", "val", "valid", "validation", "eval", "evaluation"),
    "test": ("test", "testing"),
}


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny classifier, ``model``, and a few rows for each of the roles."""
    folder = tmp_path_factory.mktemp("untrained")
    made(folder / "model", "classification")
    for role, other in zip(ROLES, "abc", strict=True):
        rows = (f"{LABELS[i % 2]},{word} {other}\n" for i, word in enumerate("abcdef"))
        (folder / f"{role}.csv").write_text("label,text\n" + "".join(rows))
    return folder


COMMANDS = (("finetune", "classify", "--model", "model"), ("fit", "--test", "test.csv"))


@pytest.fixture(scope="module")
def previews(untrained: Path) -> list[str]:
    """What the commands print for the files by the usual options."""
    files = ("--train", untrained / "train.csv", "--dev", untrained / "dev.csv")
    found = [run_cli(*command, "--dry-run", *files, cwd=untrained) for command in COMMANDS]
    assert [done.returncode for done in found] == [0, 0], found
    return [done.stdout for done in found]


@pytest.mark.parametrize(
    "kind", ["", "_file", "-file", "-data", "_dataset", "-set", "_path", "File"]
)
def test_files_by_every_spelling(kind: str, untrained: Path, previews: list[str]):
    """Transformers' scripts say train_file, validation_file; others say eval-data, dev_set, ..."""
    classifier = untrained / "model"
    spelled = {role: [f"--{name}{kind}" for name in names] for role, names in ROLES.items()}
    files = {role: untrained / f"{role}.csv" for role in ROLES}
    train, test = spelled["train"][0], spelled["test"][0]
    for command, expected in zip(COMMANDS, previews, strict=True):
        renamed = (test if each == "--test" else each for each in command)
        common = (*renamed, "--dry-run", train, files["train"])
        for name in spelled["dev"]:
            done = run_cli(*common, name, files["dev"], cwd=untrained)
            assert (done.returncode, done.stdout) == (0, expected), done.stderr
    for name in (*spelled["dev"], *spelled["test"]):
        done = run_cli("evaluate", classifier, name, files["test"])
        assert done.returncode == 0, done.stderr
    for name in spelled["train"]:
        given = ("errors", "--model", classifier, test, files["test"], name, files["train"])
        assert run_cli(*given).returncode == 0


def test_options_that_only_look_like_files(topics: Path):
    for option in ("--validation-split", "--test-size", "--train-test-split", "--"):
        done = run_cli("finetune", "classify", "--train", topics / "train.csv", option, "0.1")
        assert done.returncode == 2
        assert "no such option" in done.stderr or option == "--"


def test_texts_and_labels_as_in_scikit_learn(classifier: Path):
    texts, labels = ["red1 9", "blue2 8", "red2 7"], ["red", "blue", "blue"]
    scores = ownbert.evaluate(classifier, texts, labels)
    assert scores.values == ownbert.evaluate(classifier, (texts, labels)).values
    with pytest.raises(InputError, match="classify, multilabel, regress"):
        ownbert.fit(texts, labels, task="tag")


def test_the_version():
    assert run_cli("-V").stdout == run_cli("--version").stdout == f"ownbert {ownbert.__version__}\n"


def test_what_is_known_from_transformers(classifier: Path):
    predictor = Predictor.from_pretrained(classifier)
    assert predictor("red1 9") == Predictor(classifier)("red1 9")
    with pytest.raises(InputError, match="there is no batch_size here: rows are always packed"):
        predictor(["red1 9"], batch_size=8)
    with pytest.raises(InputError, match="return_all_scores here: use top_k=None"):
        predictor("red1 9", return_all_scores=True)
    with pytest.raises(InputError, match="words and entities are always returned"):
        Predictor(classifier, aggregation_strategy="simple")
    with pytest.raises(TypeError, match="Predictor has no option 'nix'"):
        Predictor(classifier, nix=1)
    assert OwnBertClassifier.load(classifier).predict(["red1 9"]).tolist()


def test_what_is_known_from_sentence_transformers(tmp_path: Path):
    made(tmp_path / "model")
    (tmp_path / "model/config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "a b ", "document": ""}}'
    )
    embedder = Embedder(tmp_path / "model")
    plain = embedder.encode(["c", "d"])
    assert (embedder(["c", "d"], device="cpu", convert_to_numpy=True) == plain).all()
    assert (embedder.encode_document(["c", "d"]) == plain).all()
    assert (embedder.encode_query("c") == embedder.encode("a b c")).all()
    tensors = embedder.encode(["c", "d"], convert_to_numpy=False)
    assert [each.tolist() for each in tensors] == plain.tolist()
    with pytest.raises(InputError, match="device 'gpu' is not known"):
        embedder.encode("c", device="gpu")


def test_an_option_is_named_as_it_was_typed(tmp_path: Path):
    for typed in ("--top-k", "--top", "--top_k"):
        assert refusal("predict", tmp_path, "a b", typed, 0).startswith(f"error: {typed} is '0'")
