"""``Embedder`` in scripts for sentence-transformers: the same arguments, defaults and numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ownbert import Embedder, InputError, Predictor, build_index, topics
from ownbert.exceptions import InputWarning
from ownbert.inference.vector_files import embed
from support.tiny import made

sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = ["a b", "c d e f a b c", "", "f", "a b"]
PROMPTS = {"query": "a b ", "passage": "c "}


def folder_of(folder: Path, *, normalize: bool, **habits: Any) -> Path:
    """A tiny model with the files of sentence-transformers."""
    made(folder, max_position_embeddings=12)
    (folder / "1_Pooling").mkdir()
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": i, "name": str(i), "type": f"sentence_transformers.models.{kind}", "path": path}
        for i, (kind, path) in enumerate(kinds[: 2 + normalize])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 10}')
    (folder / "config_sentence_transformers.json").write_text(json.dumps(habits))
    return folder


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of length one; do not write into it."""
    folder = tmp_path_factory.mktemp("unit") / "model"
    return folder_of(folder, normalize=True, prompts=PROMPTS, similarity_fn_name="dot")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of any length; do not write into it."""
    return folder_of(tmp_path_factory.mktemp("plain") / "model", normalize=False)


def both(folder: Path, **options: Any) -> tuple[Embedder, Any]:
    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu", **options)
    return Embedder(folder, device="cpu", **options), library


def alike(one: Any, two: Any) -> None:
    """The same types, shapes and numbers."""
    assert type(one) is type(two)
    if isinstance(one, list):
        assert len(one) == len(two)
        for pair in zip(one, two, strict=True):
            alike(*pair)
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for name in one:
            alike(one[name], two[name])
    else:
        assert getattr(one, "dtype", None) == getattr(two, "dtype", None)
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


CALLS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "normalize": {"normalize_embeddings": True},
    "do not normalize": {"normalize_embeddings": False},
    "truncate": {"truncate_dim": 3},
    "truncate and normalize": {"truncate_dim": 3, "normalize_embeddings": True},
    "truncate nothing": {"truncate_dim": 99},
    "tensor": {"convert_to_tensor": True},
    "list": {"convert_to_numpy": False, "batch_size": 2},
    "prompt": {"prompt": "d "},
    "tokens": {"output_value": "token_embeddings"},
    "bits": {"precision": "binary"},
    "unsigned bits": {"precision": "ubinary", "convert_to_tensor": True},
    "no precision": {"precision": None},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_encode_gives_the_same(unit: Path, plain: Path, options: dict[str, Any]):
    for folder in (unit, plain):
        ours, theirs = both(folder)
        alike(ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options))
        alike(ours.encode("a b c", **options), theirs.encode("a b c", **options))
        none = [each.encode([], **options) for each in (ours, theirs)]
        assert type(none[0]) is type(none[1])
        assert np.shape(none[0]) == np.shape(none[1]) == (0,)


def test_arguments_by_their_places_and_names(unit: Path):
    ours, theirs = both(unit)
    places = ("query", None, 2, False, "sentence_embedding", "float32", False, True)
    alike(ours.encode(TEXTS, *places), theirs.encode(TEXTS, *places))
    expected = ours.encode(TEXTS)
    for name in ("sentences", "inputs", "texts"):
        alike(ours.encode(**{name: TEXTS}), expected)
    with pytest.warns(InputWarning, match="prompt_name has no effect together with prompt"):
        alike(ours.encode(TEXTS, "query", "d "), theirs.encode(TEXTS, None, "d "))


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_bytes_are_steps_between_the_least_and_the_largest(plain: Path, precision: str):
    ours, theirs = both(plain)
    texts = [" ".join(word) for word in np.random.default_rng(0).choice([*"abcdef"], (200, 6))]
    one, two = ours.encode(texts, precision=precision), theirs.encode(texts, precision=precision)
    assert one.dtype == two.dtype
    assert np.abs(one.astype(int) - two).max() <= 1  # at the edge of a step
    assert (one == two).mean() > 0.99
    with pytest.warns(
        InputWarning, match="the range of each dimension is estimated from 1 vectors"
    ):
        assert ours.encode("a", precision=precision).tolist() == [one.min()] * 8


def test_mappings_have_what_the_model_reads(unit: Path):
    ours, theirs = both(unit)
    for prompt in (None, "a b "):
        options: Any = {"output_value": None, "prompt": prompt, "batch_size": 1}
        expected = theirs.encode(TEXTS, **options)
        for each in expected:
            each.pop("modality", None)  # since version 5.3
        alike(ours.encode(TEXTS, **options), expected)
    ids = ours.tokenize(TEXTS)
    assert ids["input_ids"].tolist() == theirs.tokenize(TEXTS)["input_ids"].tolist()
    assert ids["attention_mask"].sum(1).tolist() == [4, 9, 2, 3, 4]


def test_prompts(unit: Path):
    ours, theirs = both(unit)
    assert ours.prompts == theirs.prompts == {"document": "", **PROMPTS}
    for name in ("query", "passage"):
        alike(ours.encode(TEXTS, prompt_name=name), theirs.encode(TEXTS, prompt_name=name))
    alike(ours.encode_query(TEXTS), theirs.encode_query(TEXTS))
    alike(ours.encode_document(TEXTS), theirs.encode_document(TEXTS))
    for each in (ours, theirs):
        each.prompts = {"passage": "e "}
    alike(ours.encode_document(TEXTS), theirs.encode_document(TEXTS))
    options: Any = {"prompts": {"mine": "f f "}, "default_prompt_name": "mine"}
    ours, theirs = both(unit, **options)
    alike(ours.encode(TEXTS), theirs.encode(TEXTS))
    alike(ours.encode_query(TEXTS), theirs.encode_query(TEXTS))
    with pytest.raises(InputError, match="there is no prompt 'nix'; the model has query, document"):
        Embedder(unit, default_prompt_name="nix")


def test_where_texts_are_cut_can_be_set(plain: Path):
    ours, theirs = both(plain)
    assert ours.max_seq_length == ours.get_max_seq_length() == theirs.max_seq_length == 10
    before = ours.encode(TEXTS)
    ours.max_seq_length = theirs.max_seq_length = 4
    alike(ours.encode(TEXTS), theirs.encode(TEXTS))
    assert not np.allclose(ours.encode(TEXTS)[1], before[1])
    with pytest.raises(InputError, match=r"max_length is 13; it must be in \[3, 12\]"):
        ours.max_seq_length = 13


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity(unit: Path, plain: Path, name: str):
    ours, theirs = both(unit)
    assert ours.similarity_fn_name == theirs.similarity_fn_name == "dot"
    assert Embedder(plain).similarity_fn_name == "cosine"
    ours, theirs = both(plain, similarity_fn_name=name)
    vectors = ours.encode(TEXTS)
    for one, two in ((vectors, vectors[:2]), (vectors[0], vectors), (list(vectors), vectors)):
        alike(ours.similarity(one, two), theirs.similarity(one, two))
    alike(
        ours.similarity_pairwise(vectors, vectors[::-1].copy()),
        theirs.similarity_pairwise(vectors, vectors[::-1].copy()),
    )
    with pytest.raises(
        InputError, match="similarity_fn_name 'nix' is not known; use one of cosine"
    ):
        ours.similarity_fn_name = "nix"


def test_fewer_numbers(plain: Path):
    ours, theirs = both(plain, truncate_dim=5)
    assert ours.get_sentence_embedding_dimension() == 5
    alike(ours.encode(TEXTS), theirs.encode(TEXTS))
    with ours.truncate_sentence_embeddings(2):
        assert ours.encode("a").shape == (2,)
    assert ours.encode("a").shape == (5,)
    with pytest.raises(InputError, match="truncate_dim is 0"):
        ours.encode("a", truncate_dim=0)


def test_a_folder_may_have_fewer_numbers(plain: Path, tmp_path: Path):
    Embedder(plain, truncate_dim=3).save(tmp_path / "model")
    ours, theirs = both(tmp_path / "model")
    alike(ours.encode(TEXTS), theirs.encode(TEXTS))
    theirs.save(str(tmp_path / "saved"))
    assert Embedder(tmp_path / "saved").encode("a").shape == (3,)
    pair = ["a b", "c d"]
    one, two = ours.encode(pair, normalize_embeddings=True)
    cosine = Predictor(tmp_path / "model").predict([pair]).item()
    assert cosine == pytest.approx(float(one @ two), abs=1e-5)
    assert embed(tmp_path / "model", TEXTS).shape == (5, 3)
    assert build_index(tmp_path / "model", TEXTS, tmp_path / "index").search("a b")
    words = ["a b", "c d", "a b c", "d c"]
    assert sum(each.size for each in topics(ours, words, count=2).topics) == 4


def test_what_was_set_is_saved(plain: Path, tmp_path: Path):
    embedder = Embedder(plain, prompts={"query": "a b "}, default_prompt_name="query")
    embedder.max_seq_length, embedder.similarity_fn_name = 5, "euclidean"
    embedder.save(tmp_path / "copy")
    ours, theirs = both(tmp_path / "copy")
    alike(ours.encode(TEXTS), embedder.encode(TEXTS))
    alike(ours.encode(TEXTS), theirs.encode(TEXTS))
    assert ours.max_seq_length == theirs.max_seq_length == 5
    assert ours.similarity_fn_name == theirs.similarity_fn_name == "euclidean"
    Embedder(plain).save(tmp_path / "same")
    for path in plain.rglob("*.json"):
        assert (tmp_path / "same" / path.relative_to(plain)).read_bytes() == path.read_bytes()


def test_texts_may_be_made_lower_case(plain: Path, tmp_path: Path):
    Embedder(plain).save(tmp_path / "model")
    (tmp_path / "model/sentence_bert_config.json").write_text('{"do_lower_case": true}')
    embedder = Embedder(tmp_path / "model")
    alike(embedder.encode(["A B"]), embedder.encode(["a b"]))
    assert not np.allclose(Embedder(plain).encode(["A B"]), embedder.encode(["a b"]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("sentence_bert_config.json", {"max_seq_length": 100}),  # more than the model's positions
        ("config_sentence_transformers.json", {"prompts": {"a": "e "}, "default_prompt_name": "a"}),
        ("tokenizer_config.json", {"model_max_length": 5}),
    ],
)
def test_pairs_are_compared_as_by_the_embedder(
    plain: Path, tmp_path: Path, name: str, values: dict[str, Any]
):
    Embedder(plain).save(tmp_path / "model")
    (tmp_path / "model/sentence_bert_config.json").write_text("{}")
    path = tmp_path / "model" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    pair = ("A b c d a b c d a b c d a b c d", "C d a b f")
    one, two = Embedder(tmp_path / "model").encode(list(pair), normalize=True)
    cosine = float(one @ two)
    assert Predictor(tmp_path / "model").predict([pair]).item() == pytest.approx(cosine, abs=1e-5)


def test_a_prompt_that_is_not_pooled_is_refused(plain: Path, tmp_path: Path):
    Embedder(plain).save(tmp_path / "model")
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    (tmp_path / "model/1_Pooling/config.json").write_text(json.dumps(pooling))
    embedder = Embedder(tmp_path / "model")
    alike(embedder.encode(TEXTS), Embedder(plain).encode(TEXTS))
    with pytest.raises(InputError, match=r"from pooling \(include_prompt\)"):
        embedder.encode(TEXTS, prompt="a ")
    prompts = {"prompts": {"a": "e "}, "default_prompt_name": "a"}
    (tmp_path / "model/config_sentence_transformers.json").write_text(json.dumps(prompts))
    with pytest.raises(InputError, match=r"from pooling \(include_prompt\)"):
        Predictor(tmp_path / "model").predict([("a b", "c")])


def test_processes_give_the_same(unit: Path):
    embedder = Embedder(unit)
    embedder.max_seq_length = 5
    counts: list[int] = []
    pool = embedder.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = embedder.encode(
            TEXTS, "query", pool=pool, chunk_size=2, precision="binary", progress=counts.append
        )
        tokens = embedder.encode(TEXTS, pool=pool, output_value="token_embeddings")
    finally:
        embedder.stop_multi_process_pool(pool)
    alike(found, embedder.encode(TEXTS, "query", precision="binary"))
    alike(tokens, embedder.encode(TEXTS, output_value="token_embeddings"))
    assert counts == [2, 4, 5]
    alike(embedder.encode([], device=["cpu", "cpu"]), np.zeros(0, np.float32))
    with pytest.raises(InputError, match="chunk_size is -1; it must be in"):
        embedder.encode(TEXTS, device=["cpu", "cpu"], chunk_size=-1)


def test_embed_takes_what_gives_float_vectors(plain: Path, tmp_path: Path):
    with pytest.raises(TypeError, match="embed has no option 'truncate_dim'"):
        embed(plain, ["a"], tmp_path / "v.npy", truncate_dim=2)
    assert not (tmp_path / "v.npy").exists()


def evaluators(teacher: Any) -> list[Any]:
    from sentence_transformers import evaluation as made

    one, two = ["a b", "c d", "e f a", "b"], ["b a", "f", "e f", "c d a"]
    queries, corpus = dict(zip("12", one, strict=False)), dict(zip("xyzw", two, strict=True))
    rows = [{"query": "a b", "positive": ["b a"], "negative": ["f", "c d"]}]
    return [
        made.EmbeddingSimilarityEvaluator(one, two, [0.9, 0.1, 0.5, 0.3], name="similar"),
        made.BinaryClassificationEvaluator(one, two, [1, 0, 1, 0]),
        made.InformationRetrievalEvaluator(queries, corpus, {"1": {"x"}, "2": {"w"}}),
        made.TripletEvaluator(one, two, two[::-1]),
        made.RerankingEvaluator(rows),
        made.TranslationEvaluator(one, two),
        made.ParaphraseMiningEvaluator(dict(zip("1234", two, strict=True)), [("1", "3")]),
        made.MSEEvaluator(one, two, teacher_model=teacher),
    ]


def test_evaluators_give_the_same(plain: Path):
    embedder, library = both(plain)
    for evaluator in evaluators(library):
        expected, found = evaluator(library), evaluator(embedder)
        # A correlation of few pairs multiplies the differences of rounding.
        assert found == pytest.approx(expected, abs=1e-3), type(evaluator).__name__
    assert embedder.model_card_data["similar"]["similar_pearson_cosine"] <= 1


def test_an_embedder_is_in_evaluation_mode(plain: Path):
    embedder, library = both(plain)
    assert embedder.eval() is embedder.train(False) is embedder
    assert embedder.training == library.eval().training
    assert next(embedder.parameters()).device.type == "cpu"
    assert len(embedder.tokenizer) == len(library.tokenizer)
    with pytest.raises(InputError, match="ownbert finetune embed trains"):
        embedder.train()


def test_devices(unit: Path):
    embedder = Embedder(unit, device=torch.device("cpu"))
    assert embedder.to("cpu") is embedder
    with pytest.raises(InputError, match="device 'tpu' is not known"):
        embedder.to("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(
            InputError, match="device='cuda:1': PyTorch can use 0 GPUs of this machine"
        ):
            embedder.encode("a", device="cuda:1")
