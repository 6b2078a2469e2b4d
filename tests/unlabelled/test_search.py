"""An index of texts: built, opened again and searched by vectors, by words and by both."""

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ownbert import Embedder, Index, InputError, build_index
from ownbert.train.metric_names import decimals
from ownbert.unlabelled.index import K1, B, WordIndex, _fused, write_word_index
from ownbert.unlabelled.index_files import WordCounts
from support.cli import printed_rows, refusal, run_cli

TEXTS = [f"red{i % 12} w{i} green{i % 7} w{3 * i % 31} blue{i % 5} 9" for i in range(60)]


@pytest.fixture(scope="module")
def built(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of ``TEXTS`` with ids; do not write into it."""
    folder = tmp_path_factory.mktemp("index")
    lines = [json.dumps({"id": f"n{i}", "text": text}) for i, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    options = ("-o", folder / "index", "--id-column", "id")
    done = run_cli("search", "build", pretrained, folder / "texts.jsonl", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"60 texts indexed; saved {folder / 'index'}\n"
    return folder / "index"


def rows_of(hits: list[dict]) -> set[int]:
    return {hit["row"] for hit in hits}


@pytest.mark.parametrize("by", ["vectors", "words", "hybrid"])
def test_a_text_finds_itself_first(built: Path, by: str):
    for row, hits in enumerate(Index(built).search(TEXTS, top_k=3, by=by)):
        first = {"row": row + 1, "id": f"n{row}", "score": 0, "text": TEXTS[row]}
        assert hits[0] | {"score": 0} == first
        scores = [hit["score"] for hit in hits]
        assert len(hits) == 3
        assert scores == sorted(scores, reverse=True)


def test_vectors_are_compared_by_their_cosine_less_the_mean(built: Path, pretrained: Path):
    vectors = Embedder(pretrained).encode(TEXTS)
    vectors -= vectors.mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = vectors[7] @ vectors.T
    for hit in Index(built).search(TEXTS[7], top_k=60, by="vectors"):
        assert abs(hit["score"] - expected[hit["row"] - 1]) < 5e-3


def test_bytes_agree_with_floats(built: Path, pretrained: Path, tmp_path: Path):
    index = build_index(pretrained, TEXTS, tmp_path / "bytes", form="int8")
    assert index.vectors.vectors.dtype == np.int8
    sizes = [(path / "vectors.npy").stat().st_size for path in (tmp_path / "bytes", built)]
    assert sizes[0] < 0.6 * sizes[1]
    exact = Index(built).search(TEXTS, top_k=10, by="vectors")
    found = index.search(TEXTS, top_k=10, by="vectors")
    shared = [len(rows_of(a) & rows_of(b)) for a, b in zip(found, exact, strict=True)]
    assert np.mean(shared) > 9


def test_blocks_find_what_one_matrix_finds(built: Path, monkeypatch: pytest.MonkeyPatch):
    whole = Index(built).search(TEXTS[:5], top_k=8, by="vectors")
    monkeypatch.setattr("ownbert.unlabelled.index_files._ROWS", 7)
    assert [[hit["row"] for hit in hits] for hits in whole] == [
        [hit["row"] for hit in hits]
        for hits in Index(built).search(TEXTS[:5], top_k=8, by="vectors")
    ]


def test_cells_find_most_of_what_all_vectors_find(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.unlabelled.index_files._SEARCHED", 4)
    built = []
    for form, approximate in (("float16", False), ("float16", True), ("int8", True)):
        folder = tmp_path / f"{form}-{approximate}"
        built.append(build_index(pretrained, TEXTS, folder, form=form, approximate=approximate))
    found = [[*map(rows_of, index.search(TEXTS, 5, "vectors"))] for index in built]
    for each in found[1:]:
        assert all(row in rows for row, rows in enumerate(each, start=1))  # itself
        assert np.mean([len(a & b) for a, b in zip(found[0], each, strict=True)]) > 3
    # More cells are read for more rows than a few cells have.
    assert len(built[1].search(TEXTS[3], 60, "vectors")) == 60
    np.save(tmp_path / "float16-True" / "cell_rows.npy", np.arange(3))
    with pytest.raises(InputError, match="damaged; rebuild it"):
        Index(tmp_path / "float16-True")


@pytest.mark.parametrize("entries", [1 << 21, 3])
def test_words_are_weighted_by_bm25(entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where counts and weights are read in several parts."""
    for module in ("index_files", "index"):
        monkeypatch.setattr(f"ownbert.unlabelled.{module}.ENTRIES", entries)
    counted = WordCounts(tmp_path / "counts")
    counted.add(["a b b", "a c"])
    counted.add(["a d d d d"])  # a block with words that the first one lacks
    write_word_index(counted, tmp_path)
    found = WordIndex(tmp_path, counted.kind, 3).scores(["b", "a d", "unknown"])
    mean = 10 / 3

    def weight(count: int, length: int, texts: int) -> float:
        idf = np.log1p((3 - texts + 0.5) / (texts + 0.5))
        return idf * count * (K1 + 1) / (count + K1 * (1 - B + B * length / mean))

    expected = [
        [weight(2, 3, 1), 0, 0],
        [weight(1, 3, 3), weight(1, 2, 3), weight(1, 5, 3) + weight(4, 5, 1)],
        [0, 0, 0],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_memory_does_not_grow_with_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """But for two numbers per text."""
    for module in ("index_files", "index"):
        monkeypatch.setattr(f"ownbert.unlabelled.{module}.ENTRIES", 8_000)
    draw, peaks = np.random.default_rng(0), []
    for blocks in (4, 16):
        folder = tmp_path / f"{blocks}"
        folder.mkdir()
        tracemalloc.start()
        counted = WordCounts(folder / "counts")
        for _ in range(blocks):
            counted.add([" ".join(map(str, own)) for own in draw.integers(3000, size=(80, 100))])
        write_word_index(counted, folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(counted.lengths) == 1280
    assert peaks[1] < 1.5 * peaks[0]


def test_hybrid_adds_reciprocal_ranks():
    rows, scores = _fused([np.array([4, 2, 9]), np.array([2, 7])], 3)
    assert rows.tolist() == [2, 4, 7]
    np.testing.assert_allclose(scores, [1 / 62 + 1 / 61, 1 / 61, 1 / 62])


def test_found_rows_are_printed_or_written(built: Path, tmp_path: Path):
    line = ("search", "find", built, TEXTS[3], "--top", "2")
    rows = printed_rows(*line, "--json")
    assert [row["rank"] for row in rows] == [1, 2]
    first = {"query": TEXTS[3], "rank": 1, "row": 4, "id": "n3", "score": 0, "text": TEXTS[3]}
    assert rows[0] | {"score": 0} == first
    table = run_cli(*line).stdout.splitlines()
    assert table[0].strip() == TEXTS[3]
    assert table[1].split()[2] == "n3"
    (tmp_path / "queries.txt").write_text("".join(f"{text}\n" for text in TEXTS[:5]))
    output = tmp_path / "found.jsonl"
    done = run_cli("search", "find", built, tmp_path / "queries.txt", "-o", output)
    assert done.stdout == f"5 queries answered; saved {output}\n"
    assert len(output.read_text().splitlines()) == 50


def test_words_need_no_model(built: Path, classifier: Path, tmp_path: Path):
    copy = Path(shutil.copytree(built, tmp_path / "index"))
    settings = json.loads((copy / "index.json").read_text())
    (copy / "index.json").write_text(json.dumps(settings | {"model": str(tmp_path / "gone")}))
    assert Index(copy).search("w7", by="words")[0]["row"] == 8
    assert Index(copy).search("nobody", by="words") == []
    find = ("search", "find", copy, "w7")
    assert "--model" in refusal(*find)
    assert "not the model of the index" in refusal(*find, "--model", classifier)


def test_texts_without_words_are_indexed_too(pretrained: Path, tmp_path: Path):
    index = build_index(pretrained, ["", " "], tmp_path / "index")
    assert index.search("w1", by="words") == []
    assert rows_of(index.search("w1")) == {1, 2}
    for wrong in (5, [5], {"text": "w1"}):
        with pytest.raises(InputError, match="list of texts"):
            index.search(wrong)


def test_scores_of_no_size_have_no_sign(built: Path):
    lines = run_cli("search", "find", built, TEXTS[3], "--by", "vectors", "--top", "60").stdout
    scores = [line.split()[1] for line in lines.splitlines()[1:]]
    assert any(score.startswith("-") for score in scores)
    assert "-0.000" not in scores
    assert decimals(-0.0004) == "0.000"
    assert decimals(-0.0006) == "-0.001"
    signed = [decimals(x, 2, "+") for x in (-0.001, 0.001, 0.2, -0.2)]
    assert signed == ["+0.00", "+0.00", "+0.20", "-0.20"]


def test_chinese_is_found_by_its_characters(pretrained: Path, tmp_path: Path):
    texts = ["我的包裹还没到", "音乐专辑发行了", "学校在北京"]
    for name, others in (("chinese", []), ("mixed", ["a parcel that is late"] * 40)):
        index = build_index(pretrained, [*others, *texts], tmp_path / name)
        assert index.search("包裹在哪里", by="words")[0]["row"] == len(others) + 1


def test_words_are_found_with_their_marks(pretrained: Path, tmp_path: Path):
    """Vowel signs belong to their word, and accents may be written apart (NFD) or not (NFC)."""
    texts = ["दान पुण्य", "दिन रात", "kun\u0303atai\u0303 w1", "kunatai w2"]
    index = build_index(pretrained, texts, tmp_path / "index")
    assert [hit["row"] for hit in index.search("दिन", by="words")] == [2]
    assert [hit["row"] for hit in index.search("Kuñataĩ", by="words")] == [3]


def test_standard_input_is_indexed(pretrained: Path, tmp_path: Path):
    output = tmp_path / "index"
    lines = '{"name": 7, "text": "w1 w2"}\n{"name": 8, "text": "w3"}\n'
    line = ("search", "build", pretrained, "-", "-o", output, "--id-column", "name")
    assert run_cli(*line, stdin=lines).returncode == 0
    assert [hit["id"] for hit in Index(output).search("w3", by="words")] == [8]


def test_mistakes_leave_nothing(built: Path, pretrained: Path, tmp_path: Path):
    (tmp_path / "texts.csv").write_text("label,text\nx,w1 w2\n")
    (tmp_path / "broken.csv").write_text('label,text\nx,w1\ny,"w2\n')
    before = sorted(tmp_path.rglob("*"))
    texts, output = tmp_path / "texts.csv", tmp_path / "new" / "index"
    line = ("search", "build", pretrained)
    for wrong in (
        (*line, tmp_path / "none.csv", "-o", output),
        (*line, tmp_path / "broken.csv", "-o", output),
        (*line, texts, "-o", output, "--form", "int4"),
        (*line, texts, "-o", output, "--text-column", "body"),
        (*line, texts, "-o", texts),
        (*line, texts, "-o", pretrained),
        ("search", "build", tmp_path / "none", texts, "-o", output),
        ("search", "find", tmp_path, "w1"),
        ("search", "find", built, "w1", "--by", "sense"),
        ("search", "find", built, tmp_path / "none.txt"),
        ("search", "find", built, " "),
        ("search", "find", built, "w1", "-o", tmp_path / "found.png"),
        ("search", "find", built, "w1", "-o", tmp_path / "found.jsonl", "--json"),
        ("search", "find", built, "w1", "--by", "words", "--model", pretrained),
    ):
        refusal(*wrong)
        assert sorted(tmp_path.rglob("*")) == before, wrong


def test_an_index_is_replaced_if_asked_and_files_of_others_are_not(
    pretrained: Path, tmp_path: Path
):
    output = tmp_path / "index"
    build_index(pretrained, ["w1 9", "w2 9"], output, form="int8")
    line = ("search", "build", pretrained, "w3 9", "w4 9", "w5 9", "-o")
    assert "--overwrite" in refusal(*line, output)
    assert run_cli(*line, output, "--overwrite").returncode == 0
    assert [hit["row"] for hit in Index(output).search("w5", by="words")] == [3]
    others = tmp_path / "others"
    others.mkdir()
    (others / "words.npy").write_bytes(b"mine")
    refusal(*line, others, "--overwrite")
    assert [path.name for path in others.iterdir()] == ["words.npy"]
    assert (others / "words.npy").read_bytes() == b"mine"
    (others / "words.npy").rename(others / "notes.txt")
    assert "has not written" in refusal(*line, others, "--overwrite")
    assert [path.name for path in others.iterdir()] == ["notes.txt"]


def test_a_damaged_index_is_refused(built: Path, tmp_path: Path):
    for name in ("vectors.npy", "rows.arrow", "starts.npy"):
        copy = Path(shutil.copytree(built, tmp_path / name))
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(InputError, match="damaged"):
            Index(copy)
