"""The clients that people have, unmodified, against a server on a socket."""

import base64
import importlib
import io
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from PIL import Image

import ownbert
from ownbert import Embedder, Predictor, finetune
from ownbert.batches.batch import Example
from ownbert.checkpoint import load
from ownbert.inspect.internals.observation import attention_maps
from ownbert.translation.decode import Translator
from ownbert.unlabelled.label import uncertainty
from support.sequences import copying
from support.serving import Served, served
from support.tiny import TOKENIZER, change_config, made

# What the index has.
FOUND = ["red1 w2 9", "green3 w4 9", "", "blue5 red1 9", "long " * 20_000]


def _image_model(folder: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 8, 8), dtype=np.uint8)
    rows = [
        {"image": Image.fromarray(p), "label": c} for p, c in zip(pixels, "ababab", strict=True)
    ]
    sizes = {"hidden_size": 16, "layers": 1, "heads": 2}
    finetune("image", train=rows, output=folder, epochs=1, quiet=True, **sizes)
    return folder


@pytest.fixture(scope="module")
def folders(
    classifier: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One tiny model for each task."""
    base = tmp_path_factory.mktemp("served")
    heads = {
        "pairs": ("classification", {"ownbert_task": {"name": "classify", "pair": True}}),
        "tags": ("tokens", {"id2label": {"0": "B-X", "1": "I-X", "2": "O"}}),
        "answers": ("span", {}),
        "choices": ("choice", {}),
    }
    for name, (head, config) in heads.items():
        made(base / name, head)
        change_config(base / name, **config)
    made(base / "reranker", "classification", labels=("LABEL_0",))
    change_config(base / "reranker", problem_type=...)
    made(base / "matches", "classification", labels=("no", "yes"))
    made(base / "vectors")
    made(base / "long", max_position_embeddings=1100)
    ownbert.build_index(pretrained, FOUND, base / "index")
    found = {
        name: base / name for name in (*heads, "reranker", "matches", "vectors", "long", "index")
    }
    found |= {"topics": classifier, "words": pretrained, "images": _image_model(base / "images")}
    found["org/vectors"] = found["vectors"]
    (base / "translations").mkdir()
    found["translations"] = copying(base / "translations", count=20, epochs=1)
    return found


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Served]:
    with served(*(f"{name}={folder}" for name, folder in folders.items())) as found:
        yield found


@pytest.fixture(scope="module")
def of_openai(server: Served) -> Any:
    import openai  # a second: only the process that runs these tests needs it

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def hub(server: Served, name: str) -> InferenceClient:
    return InferenceClient(base_url=f"{server.url}/models/{name}")


def test_openai_embeddings(of_openai: Any, folders: dict[str, Path]):
    embedder = Embedder(folders["vectors"])
    texts = ["a b c", "d", "a"]
    expected = embedder.encode(texts, normalize=True)
    assert np.linalg.norm(embedder.encode("a")) > 1.01  # the folder does not normalise
    for options in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
        found = of_openai.embeddings.create(model="vectors", input=texts, **options)
        vectors = [each.embedding for each in found.data]
        np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)
        assert [each.index for each in found.data] == [0, 1, 2]
        assert found.usage.total_tokens == sum(len(ids) for ids in embedder.ids(texts))
    one = of_openai.embeddings.create(model="vectors", input="a b c")
    np.testing.assert_allclose(one.data[0].embedding, expected[0], rtol=1e-4, atol=1e-5)
    ids = embedder.tokenizer.encode_batch(texts)
    of_ids = of_openai.embeddings.create(model="vectors", input=ids)
    np.testing.assert_allclose(of_ids.data[1].embedding, expected[1], rtol=1e-4, atol=1e-5)
    of_one = of_openai.embeddings.create(model="vectors", input=ids[0])
    np.testing.assert_allclose(of_one.data[0].embedding, expected[0], rtol=1e-4, atol=1e-5)
    short = np.asarray(
        of_openai.embeddings.create(model="vectors", input="a", dimensions=3).data[0].embedding
    )
    assert short.shape == (3,)
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"input": ""}, "BadRequestError", "empty text"),
        ({"input": []}, "BadRequestError", "empty"),
        ({"input": ["a"] * 2049}, "BadRequestError", "2,049 inputs; at most 2,048"),
        ({"input": "a", "model": "nix"}, "NotFoundError", "no model 'nix'"),
        ({"input": "a", "model": "topics"}, "UnprocessableEntityError", "not for embed"),
        ({"input": [[99]]}, "UnprocessableEntityError", "token ids must be from 0 to 10"),
        ({"input": "a", "dimensions": 9}, "UnprocessableEntityError", "it must be from 1 to 8"),
        ({"input": 7}, "UnprocessableEntityError", "input"),
    ],
)
def test_openai_errors(of_openai: Any, given: dict[str, Any], error: str, message: str):
    kind = getattr(importlib.import_module("openai"), error)
    with pytest.raises(kind, match=message) as found:
        of_openai.embeddings.create(**{"model": "vectors", **given})
    assert {"message", "type", "param", "code"} == {*found.value.body}


def test_openai_lists_the_models(of_openai: Any, folders: dict[str, Path]):
    assert {model.id for model in of_openai.models.list()} == {*folders}
    assert of_openai.models.retrieve("words").id == "words"


def test_the_hubs_client_classifies(server: Served, folders: dict[str, Path]):
    expected = Predictor(folders["topics"])("red1 9", top_k=None)
    found = hub(server, "topics").text_classification("red1 9")
    assert [each.label for each in found] == [each["label"] for each in expected]
    assert found[0].score == pytest.approx(expected[0]["score"], abs=1e-5)
    assert len(hub(server, "topics").text_classification("red1 9", top_k=1)) == 1


def test_the_hubs_client_gets_logits(server: Served, folders: dict[str, Path], transformers: Any):
    theirs = transformers.pipeline("text-classification", str(folders["topics"]), device="cpu")
    for name in ("none", "sigmoid", "softmax"):
        expected = theirs("red1 9", function_to_apply=name, top_k=None)
        found = hub(server, "topics").text_classification("red1 9", function_to_apply=name)
        assert [each.label for each in found] == [each["label"] for each in expected]
        scores = [each["score"] for each in expected]
        assert [each.score for each in found] == pytest.approx(scores, abs=1e-4)
        raw = {"inputs": "red1 9", "raw_scores": True}
        if name == "none":
            again = server.answer("/predict?model=topics", raw)
            assert [each["score"] for each in again] == pytest.approx(scores, abs=1e-4)


def test_ranking_needs_one_score(server: Served, folders: dict[str, Path]):
    texts = ["b", "c d", "red1 9", "e e"]
    body = {"query": "a", "texts": texts}
    matches = Predictor(folders["matches"]).predict_proba([("a", text) for text in texts])[:, -1]
    ranks = server.post("/rerank?model=matches", body)[1]
    raw = server.post("/rerank?model=matches", body | {"raw_scores": True})[1]
    order = [each["index"] for each in ranks]
    assert order == [each["index"] for each in raw] == np.argsort(-matches).tolist()
    assert [each["score"] for each in ranks] == pytest.approx(matches[order], abs=1e-5)
    logits = np.log(matches / (1 - matches))[order]
    assert [each["score"] for each in raw] == pytest.approx(logits, abs=1e-3)
    status, error, _ = server.post("/rerank?model=pairs", body)
    assert (status, "has 3 labels; ranking needs one score" in error["error"]) == (422, True)


def test_a_task_that_a_model_is_not_for_is_named(server: Served):
    topics = hub(server, "topics")
    with pytest.raises(HfHubHTTPError, match="is for text-classification, not for question-answ"):
        topics.question_answering(question="a", context="b")
    with pytest.raises(HfHubHTTPError, match="text-classification, not for token-classification"):
        topics.token_classification("a", aggregation_strategy="simple")
    with pytest.raises(HfHubHTTPError, match="for token-classification, not for text-classificati"):
        hub(server, "tags").text_classification("a", function_to_apply="none")
    # Without parameters nothing in the request tells which of the two is meant, but its address.
    named = InferenceClient(base_url=f"{server.url}/pipeline/token-classification/topics")
    with pytest.raises(HfHubHTTPError, match="text-classification, not for token-classification"):
        named.token_classification("a")


def test_names_with_a_slash(server: Served, of_openai: Any, folders: dict[str, Path]):
    expected = Embedder(folders["vectors"]).encode(["a b"])
    found = of_openai.embeddings.create(model="org/vectors", input=["a b"])
    assert abs(np.linalg.norm(expected[0]) - 1) > 0.01
    unit = expected[0] / np.linalg.norm(expected[0])
    np.testing.assert_allclose(found.data[0].embedding, unit, rtol=1e-4, atol=1e-5)
    assert of_openai.models.retrieve("org/vectors").id == "org/vectors"
    named = hub(server, "org/vectors").feature_extraction("a b")
    np.testing.assert_allclose(named, expected, rtol=1e-4, atol=1e-5)
    path = "/pipeline/feature-extraction/org/vectors"
    assert server.post(path, {"inputs": ["a b"]})[0] == 200
    body = {"model": "org/vectors", "input": "a b", "encoding_format": None, "dimensions": None}
    floats = server.answer("/v1/embeddings", body)
    np.testing.assert_allclose(floats["data"][0]["embedding"], unit, rtol=1e-4, atol=1e-5)


def test_ids_of_tokens_are_embedded(server: Served, folders: dict[str, Path]):
    embedder = Embedder(folders["vectors"])
    ids = embedder.tokenizer.encode_batch(["a b", "c"])
    expected = embedder.encode(["a b", "c"], normalize=True)
    for inputs, wanted in ((ids, expected), (ids[0], expected[:1])):
        found = server.answer("/embed?model=vectors", {"inputs": inputs})
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    status, tokens, _ = server.post("/embed_all?model=vectors", {"inputs": ids})
    assert (status, [len(each) for each in tokens]) == (200, [4, 3])
    for inputs, message in (
        ([[99]], "token ids must be from 0 to 10"),
        ([["a"]], "inputs must be a text, ids of tokens, or a list of either"),
        ([True], "inputs must be a text, ids of tokens, or a list of either"),
        ([[]], "token ids must be from 0 to 10, one or more"),
    ):
        status, error, _ = server.post("/embed?model=vectors", {"inputs": inputs})
        assert status == 422
        assert message in error["error"]


def test_health_and_the_list_of_paths(server: Served):
    assert server.get("/ping")[0] == 200
    for path in ("/health", "/"):  # as load balancers and curl -I ask
        with urllib.request.urlopen(urllib.request.Request(server.url + path, method="HEAD")) as at:
            assert (at.status, at.read()) == (200, b"")
    assert server.get("/embed")[0] == 405
    assert server.get("/embed")[2]["allow"] == "POST"
    status, page, _ = server.get("/docs")
    assert status == 200
    assert "/embed_all" in str(page)
    assert "<script" not in str(page)


def test_the_hubs_client_tags_and_answers(server: Served, folders: dict[str, Path]):
    text = "a b c d e f"[:5]
    expected = Predictor(folders["tags"])(text)
    found = hub(server, "tags").token_classification(text, aggregation_strategy="simple")
    assert [(e.entity_group, e.word, e.start, e.end) for e in found] == [
        (e["entity_group"], e["word"], e["start"], e["end"]) for e in expected
    ]
    words = hub(server, "tags").token_classification(text, aggregation_strategy="none")
    assert all(text[each.start : each.end] == each.word for each in words)
    answer = hub(server, "answers").question_answering(question="a", context="b c")
    expected = Predictor(folders["answers"])(question="a", context="b c")
    assert (answer.answer, answer.start, answer.end) == tuple(
        expected[key] for key in ("answer", "start", "end")
    )


def test_the_hubs_client_has_its_parameters(server: Served, folders: dict[str, Path]):
    context = "b c d e"
    expected = Predictor(folders["answers"])(question="a", context=context, top_k=3)
    several: Any = hub(server, "answers").question_answering("a", context, top_k=3)
    assert [(e.answer, e.start, e.end) for e in several] == [
        (e["answer"], e["start"], e["end"]) for e in expected
    ]
    best = Predictor(folders["answers"])(question="a", context=context)
    assert (len(several), several[0].answer) == (3, best["answer"])
    client = hub(server, "tags")
    every = client.token_classification("a b", aggregation_strategy="none")
    kinds = {str(each.entity) for each in every}
    assert kinds
    kept = client.token_classification("a b", aggregation_strategy="none", ignore_labels=[*kinds])
    assert kept == []
    topics = hub(server, "topics")
    assert topics.text_classification("red1", function_to_apply="softmax")
    with pytest.raises(
        HfHubHTTPError, match="function_to_apply is 'tanh'; it must be one of none, softmax"
    ):
        topics.text_classification("red1", function_to_apply="tanh")  # pyright: ignore
    vectors = hub(server, "vectors")
    assert vectors.feature_extraction("a b c d", truncate=False).shape == (1, 8)
    assert vectors.feature_extraction("a b c d e", truncate=True).shape == (1, 8)
    with pytest.raises(HfHubHTTPError, match="more than 6 tokens, and truncate is false"):
        vectors.feature_extraction("a b c d e", truncate=False)
    with pytest.raises(HfHubHTTPError, match="long texts are truncated at the end"):
        vectors.feature_extraction("a", truncation_direction="Left")


def test_the_hubs_client_fills_masks(server: Served, folders: dict[str, Path]):
    (expected,) = ownbert.fill(folders["words"], "red1 [MASK] 9", top=3)[0].masks
    found = hub(server, "words").fill_mask("red1 [MASK] 9", top_k=3)
    assert [each.token_str for each in found] == [c.text for c in expected.candidates]
    assert found[0].sequence == f"red1 {expected.candidates[0].text} 9"
    chosen = hub(server, "words").fill_mask("red1 [MASK] 9", targets=["red2", "9"])
    assert {each.token_str for each in chosen} == {"red2", "9"}
    twice = hub(server, "words").fill_mask("red1 [MASK] 9", targets=["red2", "9", "red2"])
    assert twice == chosen


def test_the_hubs_client_embeds_and_compares(server: Served, folders: dict[str, Path]):
    embedder = Embedder(folders["vectors"])
    found = hub(server, "vectors").feature_extraction("a b")
    np.testing.assert_allclose(found[0], embedder.encode("a b"), rtol=1e-4, atol=1e-5)
    unit = hub(server, "vectors").feature_extraction("a b", normalize=True)
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-5)
    cosines = hub(server, "vectors").sentence_similarity("a b", other_sentences=["c", "a b"])
    assert cosines[1] == pytest.approx(1, abs=1e-5)
    # A pretrained model both fills masks and embeds.
    assert hub(server, "words").feature_extraction("red1").shape[0] == 1


def test_the_hubs_client_sends_images(server: Served, folders: dict[str, Path]):
    pixels = np.random.default_rng(1).integers(0, 255, (8, 8), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    expected = Predictor(folders["images"])(Image.fromarray(pixels), top_k=None)
    found = hub(server, "images").image_classification(file.getvalue())
    assert [each.label for each in found] == [each["label"] for each in expected]
    own = {"inputs": base64.b64encode(file.getvalue()).decode(), "model": "images"}
    assert server.post("/v1/image", own)[1]["answers"][0][0]["label"] == found[0].label
    eps = io.BytesIO()
    Image.fromarray(pixels).save(eps, "eps")
    # Pillow does not implement the second one, and raises an error of another kind.
    dds = b"DDS |".ljust(80, b"\0") + b"\x92".ljust(48, b"\0")
    for broken in (b"no image", dds, eps.getvalue()):
        status, error, _ = server.post("/models/images", broken, content_type="image/png")
        assert (status, "not a readable image" in error["error"]) == (422, True)
    assert "cannot identify" in error["error"]  # Ghostscript is not started


def test_the_hubs_client_translates(server: Served, folders: dict[str, Path]):
    (expected,) = Translator(folders["translations"])(["10 12 13"])
    assert hub(server, "translations").translation("10 12 13").translation_text == expected
    status, found, _ = server.post(
        "/v1/translate", {"inputs": ["10 12 13", "14"], "model": "translations"}
    )
    assert (status, found["answers"][0]) == (200, expected)


def test_text_embeddings_inference(server: Served, folders: dict[str, Path]):
    embedder = Embedder(folders["vectors"])
    _, vectors, headers = server.post("/embed?model=vectors", {"inputs": ["a b", "c"]})
    expected = embedder.encode(["a b", "c"], normalize=True)
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)
    assert int(headers["x-compute-tokens"]) == 7
    for name in ("x-queue-time", "x-inference-time", "x-total-time"):
        assert int(headers[name]) >= 0
    (tokens,) = server.post("/embed_all?model=vectors", {"inputs": "a b"})[1]
    np.testing.assert_allclose(
        np.mean(tokens, axis=0), embedder.encode("a b"), rtol=1e-4, atol=1e-5
    )
    ranked = server.post(
        "/rerank?model=vectors", {"query": "a", "texts": ["b", "a"], "return_text": True}
    )[1]
    assert (ranked[0]["index"], ranked[0]["text"]) == (1, "a")
    assert ranked[0]["score"] >= ranked[1]["score"]
    inputs = {"source_sentence": "a", "sentences": ["a"]}
    assert server.post("/similarity?model=vectors", {"inputs": inputs})[1] == [pytest.approx(1)]
    status, error, _ = server.post(
        "/embed?model=vectors", {"inputs": "a", "truncation_direction": "Left"}
    )
    assert (status, "truncation_direction" in error["error"]) == (422, True)
    known = {"inputs": "red1", "parameters": {"truncation": True}}
    assert server.post("/models/topics", known)[0] == 200
    for path, body, field in (  # they were ignored
        ("/predict?model=topics", {"inputs": "red1", "coverage": 0.9}, "coverage"),
        ("/predict?model=topics", {"inputs": "red1", "unknown": 0.1}, "unknown"),
        ("/embed?model=vectors", {"inputs": "a", "dimension": 4}, "dimension"),
        ("/rerank?model=vectors", {"query": "a", "texts": ["a"], "top_n": 1}, "top_n"),
        ("/tokenize?model=vectors", {"inputs": "a", "prompt_name": "query"}, "prompt_name"),
    ):
        status, error, _ = server.post(path, body)
        assert status == 422
        assert error["error"].startswith(f"{field}: there is no field of this name")
    for path, body in (
        ("/embed", {"inputs": []}),
        ("/rerank", {"query": "a", "texts": []}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
        *((path, {"inputs": []}) for path in ("/embed_all", "/predict", "/tokenize")),
        *(("/decode", {"ids": ids}) for ids in ([], [[]])),
        ("/models/vectors", {"inputs": {"source_sentence": "a", "sentences": []}}),
        ("/v1/rank", {"query": "a", "texts": [], "model": "vectors"}),
    ):
        assert server.post(f"{path}?model=vectors", body)[0] == 422


def test_a_reranker_of_the_hub(server: Served, folders: dict[str, Path]):
    predictor = Predictor(folders["reranker"])
    single, pair = predictor(["a b"])[0]["score"], predictor([("a b", "c")])[0]["score"]
    assert predictor([{"text": "a b", "text_pair": "c"}])[0]["score"] == pair != single
    body = {"query": "a b", "texts": ["c"]}
    for raw, expected in ((False, 1 / (1 + np.exp(-pair))), (True, pair)):
        (found,) = server.post("/rerank?model=reranker", body | {"raw_scores": raw})[1]
        assert found["score"] == pytest.approx(expected, abs=1e-5)
    # As text-embeddings-inference and Transformers' pipeline score one logit.
    for inputs, logit in (("a b", single), (["a b", "c"], pair)):
        body = {"inputs": inputs}
        for raw, expected in ((False, 1 / (1 + np.exp(-logit))), (True, logit)):
            (label,) = server.post("/predict?model=reranker", body | {"raw_scores": raw})[1]
            assert label["score"] == pytest.approx(expected, abs=1e-5)
        function = {"parameters": {"function_to_apply": "none"}}
        for more, expected in (({}, 1 / (1 + np.exp(-logit))), (function, logit)):
            ((label,),) = server.post("/models/reranker", {"inputs": [inputs], **more})[1]
            assert label["score"] == pytest.approx(expected, abs=1e-5)


def test_long_texts_are_refused_without_truncate(server: Served):
    long = "a b c d e f a b"
    for path, body in (
        ("/rerank?model=vectors", {"query": "a", "texts": ["b", long]}),
        ("/rerank?model=matches", {"query": "a", "texts": ["b", long]}),
        ("/predict?model=pairs", {"inputs": ["a", long]}),
        ("/predict?model=pairs", {"inputs": [["a", "b"], [long, "c"]]}),
    ):
        assert server.post(path, body)[0] == 200
        assert server.post(path, body | {"truncate": True})[0] == 200
        status, error, _ = server.post(path, body | {"truncate": False})
        assert (status, "6 tokens, and truncate is false" in error["error"]) == (413, True), path
    short = {"query": "a", "texts": ["b"], "truncate": False}
    for model in ("vectors", "matches"):
        assert server.post(f"/rerank?model={model}", short)[0] == 200
    body = {"inputs": {"source_sentence": "a", "sentences": [long]}}
    for path in ("/similarity?model=vectors", "/models/vectors"):
        assert server.post(path, body)[0] == 200
        assert server.post(path, body | {"parameters": {"truncate": False}})[0] == 413


def test_what_is_predicted_is_one_pair_or_a_batch(server: Served, folders: dict[str, Path]):
    one = server.post("/predict?model=pairs", {"inputs": ["a", "b"]})[1]
    assert {*one[0]} == {"label", "score"}
    batch = server.post("/predict?model=pairs", {"inputs": [["a", "b"], ["c", "d"]]})[1]
    assert batch[0] == [
        {"label": each["label"], "score": pytest.approx(each["score"], abs=1e-5)} for each in one
    ]
    texts = server.post("/predict?model=topics", {"inputs": [["red1"], ["blue1"]]})[1]
    assert len(texts) == 2
    status, error, _ = server.post("/predict?model=topics", {"inputs": ["red1", "blue1"]})
    assert (status, error["error"]) == (422, "the model topics reads one text, not a pair")


def test_tokens_there_and_back(server: Served):
    (tokens,) = server.post("/tokenize?model=vectors", {"inputs": "a  bc d"})[1]
    assert [each["special"] for each in tokens] == [True, False, False, False, True]
    assert [("a  bc d"[e["start"] : e["stop"]]) for e in tokens[1:4]] == ["a", "bc", "d"]
    ids = [each["id"] for each in tokens]
    assert server.post("/decode?model=vectors", {"ids": ids})[1] == ["a d"]
    assert server.post("/decode?model=vectors", {"ids": [999]})[0] == 422


def test_an_index_is_searched(server: Served, folders: dict[str, Path]):
    index, queries = ownbert.Index(folders["index"]), ["red1 9", "w4"]
    for by in ("hybrid", "vectors", "words"):
        body = {"inputs": queries, "model": "index", "top_k": 2, "by": by}
        found = server.answer("/v1/search", body)
        assert found["usage"]["tokens"] >= 3
        for hits, expected in zip(
            found["answers"], index.search(queries, top_k=2, by=by), strict=True
        ):
            assert [hit["text"] for hit in hits] == [hit["text"] for hit in expected]
            assert [hit["row"] for hit in hits] == [hit["row"] for hit in expected]
            for one, two in zip(hits, expected, strict=True):
                assert one["score"] == pytest.approx(two["score"], abs=1e-3)
    one = server.post("/v1/search", {"inputs": "w4", "model": "index"})[1]["answers"]
    assert one == [index.search("w4")]
    assert server.post("/v1/search", {"inputs": "nobody", "model": "index", "by": "words"})[1][
        "answers"
    ] == [[]]


def test_a_body_that_is_not_sent_as_json_and_a_field_that_does_not_exist(server: Served):
    body, form = {"inputs": "a", "model": "topics"}, "application/x-www-form-urlencoded"
    status, found, _ = server.post("/v1/classify", body, content_type=form)
    assert status == 422
    assert "add the header content-type: application/json" in str(found["error"])
    status, found, _ = server.post("/v1/classify", {**body, "foo": 1})
    assert status == 422
    assert "foo: there is no field of this name" in str(found["error"])
    status, found, _ = server.post("/v1/classify", {**body, "targets": ["a"]})
    assert (status, found["error"]["message"]) == (422, "targets does not apply to classify")


def test_an_index_gives_vectors_too(server: Served, folders: dict[str, Path]):
    found = server.answer("/v1/embed", {"inputs": ["red1 9"], "model": "index"})
    expected = Embedder(folders["words"]).encode(["red1 9"])
    np.testing.assert_allclose(found["answers"], expected, rtol=1e-2, atol=1e-3)
    features = hub(server, "index").feature_extraction("red1 9")
    np.testing.assert_allclose(np.ravel(features), expected[0], rtol=1e-2, atol=1e-3)
    about = server.get("/info?model=index")[1]["models"][0]
    assert (about["task"], about["operations"]) == ("search", ["search", "embed"])
    assert server.post("/v1/classify", {"inputs": "a", "model": "index"})[0] == 422


def test_texts_to_label_are_chosen(server: Served, folders: dict[str, Path], topics: Path):
    texts = [row.split(",", 1)[1] for row in (topics / "test.csv").read_text().splitlines()[1:]]
    texts = [*texts, "", texts[0]]
    found = server.answer("/v1/label", {"inputs": texts, "count": 8, "model": "topics"})
    assert found["usage"]["tokens"] > len(texts)
    rows = found["answers"]
    assert len({row["text"] for row in rows}) == 8
    assert [texts[row["index"]] for row in rows] == [row["text"] for row in rows]
    predictor = Predictor(folders["topics"])
    own = uncertainty(predictor.predict_proba([row["text"] for row in rows]))
    assert own.mean() > uncertainty(predictor.predict_proba(texts)).mean()
    for row in rows:
        assert {*row} == {"index", "text", "suggested", "score", "reason"}
        assert row["suggested"] == predictor(row["text"])[0]["label"]
    every = server.post("/v1/label", {"inputs": texts[:5], "model": "topics"})[1]["answers"]
    assert sorted(row["index"] for row in every) == [*range(5)]
    scores = uncertainty(predictor.predict_proba([row["text"] for row in every])).tolist()
    assert scores == sorted(scores, reverse=True)


def test_topics_and_duplicates_of_texts(server: Served, folders: dict[str, Path]):
    texts = [f"red{i} w{i} w{i + 1}" for i in range(6)] + [f"blue{i} v{i}" for i in range(6)]
    body = {"inputs": texts, "count": 2, "model": "words"}
    found = server.answer("/v1/topics", body)
    expected = ownbert.topics(Embedder(folders["words"]), texts, count=2)
    assert [each["indices"] for each in found["answers"]] == [
        np.flatnonzero(expected.of_text == number).tolist() for number in range(2)
    ]
    assert [each["words"] for each in found["answers"]] == [t.words for t in expected.topics]
    assert found["usage"]["tokens"] > len(texts)
    near = "the parcel of the customer has still not arrived at the address"
    texts = [near, "other", f"{near.upper()}!", "", "", near.replace("still", "even")]
    body = {"inputs": texts, "threshold": 0.6, "model": "topics"}
    found = server.answer("/v1/duplicates", body)
    (group,) = found["answers"]
    assert [each["index"] for each in group] == [0, 2, 5]
    assert [each["similarity"] for each in group[:2]] == [1, 1]
    assert server.post("/v1/duplicates", {**body, "threshold": 0.99})[1]["answers"] == [group[:2]]


def test_a_text_is_never_the_name_of_a_file(server: Served, tmp_path: Path):
    secret = tmp_path / "secret.txt"
    secret.write_text("one\none\ntwo\n" * 3)
    for texts in ([str(secret)], [str(secret), "a"], [f"{tmp_path}/*"], ["-"]):
        found = server.post("/v1/duplicates", {"inputs": texts, "model": "words"})
        assert (found[0], found[1].get("answers")) == (200, [])
        found = server.post("/v1/topics", {"inputs": texts, "model": "words"})
        message = f"there are {len(texts)} texts; topics need at least 3"
        assert (found[0], found[1]["error"]["message"]) == (422, message)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        *(("classify", "topics"), ("tag", "tags"), ("answer", "answers"), ("choose", "choices")),
        *(("image", "images"), ("fill", "words"), ("score", "words"), ("embed", "vectors")),
        *(("search", "index"), ("translate", "translations"), ("explain", "topics")),
        *(("label", "topics"), ("topics", "words"), ("duplicates", "words")),
    ],
)
def test_an_empty_list_is_refused(server: Served, task: str, model: str):
    status, found, _ = server.post(f"/v1/{task}", {"inputs": [], "model": model})
    assert status == 422
    assert found["error"]["param"] == "inputs"
    if model != "images":
        assert server.post(f"/models/{model}", {"inputs": []})[0] == 422


def test_texts_are_scored(server: Served, folders: dict[str, Path]):
    texts = ["red1 w2 9", ""]
    status, found, _ = server.post("/v1/score", {"inputs": texts, "model": "words"})
    first, empty = ownbert.score(folders["words"], texts)
    assert status == 200
    assert found["usage"]["tokens"] >= 3 * len(first.tokens)  # of all passes
    assert found["answers"][0]["score"] == pytest.approx(first.score, rel=1e-3)
    assert [token for token, _ in found["answers"][0]["tokens"]] == texts[0].split()
    assert found["answers"][1]["score"] is empty.score is None
    status, found, _ = server.post("/v1/score", {"inputs": texts, "model": "topics"})
    assert (status, "not for score" in found["error"]["message"]) == (422, True)


@pytest.mark.parametrize(
    ("task", "model", "inputs"),
    [
        ("classify", "topics", ["red1 9", "blue1"]),
        ("classify", "pairs", [{"text": "a", "text_pair": "b"}]),
        ("tag", "tags", ["a b"]),
        ("answer", "answers", [{"question": "a", "context": "b c"}]),
        ("choose", "choices", [{"prompt": "a", "choices": ["b", "c"]}]),
    ],
)
def test_every_task_has_a_path(server: Served, folders, task: str, model: str, inputs: list[Any]):
    status, found, _ = server.post(f"/v1/{task}", {"inputs": inputs, "model": model})
    expected = Predictor(folders[model])(inputs)
    assert status == 200
    assert found["model"] == model
    assert found["usage"]["tokens"] > 0
    assert [_rounded(each) for each in found["answers"]] == [_rounded(each) for each in expected]
    single = server.post(f"/v1/{task}", {"inputs": inputs[0], "model": model})[1]["answers"]
    assert _rounded(single[0]) == _rounded(expected[0])


def test_pairs_are_lists_or_objects(server: Served):
    asked = {"model": "pairs", "inputs": [["a", "b"], {"text": "a", "text_pair": "b"}]}
    found = server.answer("/v1/classify", asked)
    assert _rounded(found["answers"][0]) == _rounded(found["answers"][1])
    status, error, _ = server.post("/v1/classify", asked | {"inputs": "a"})
    assert status == 422
    assert error["error"]["message"].startswith("the model pairs reads pairs: an input must be")


def test_answers_are_explained(server: Served, folders: dict[str, Path]):
    given = {"inputs": ["red1 9", "blue1"], "model": "topics", "method": "leave_one_out"}
    found = server.answer("/v1/explain", given)
    expected = ownbert.explain(folders["topics"], given["inputs"], method="leave_one_out")
    for (ours,), theirs in zip(found["answers"], expected, strict=True):
        assert (ours["target"], ours["method"]) == (theirs.target, "leave_one_out")
        values = [word["value"] for word in ours["words"]]
        assert values == pytest.approx(theirs.values.tolist(), abs=1e-4)
    assert found["usage"]["tokens"] == 4 * 4 + 3 * 3  # the words are masked one by one
    tags = server.answer("/v1/explain", {"inputs": "a b", "model": "tags"})
    assert tags["answers"][0][0]["texts"] == ["a b"]


@pytest.mark.parametrize(
    ("model", "given", "sequences"),
    [
        ("vectors", "a b", [["[CLS]", "a", "b", "[SEP]"]]),
        ("pairs", {"text": "a", "text_pair": "b"}, [["[CLS]", "a", "[SEP]", "b", "[SEP]"]]),
        (
            "choices",
            {"prompt": "a", "choices": ["b", "c"]},
            [["[CLS]", "a", "[SEP]", "b", "[SEP]"], ["[CLS]", "a", "[SEP]", "c", "[SEP]"]],
        ),
    ],
)
def test_attention_of_chosen_layers(server: Served, folders, model: str, given: Any, sequences):
    body = {"inputs": given, "layers": [-1], "heads": [1], "model": model}
    status, found, _ = server.post("/v1/attention", body)
    assert (status, found["model"]) == (200, model)
    assert [answer["tokens"] for answer in found["answers"]] == sequences
    assert found["usage"]["tokens"] == sum(map(len, sequences))
    network = load(folders[model])
    ids = [[TOKENIZER.id_of(token) for token in own] for own in sequences]
    types = [np.cumsum(np.r_[0, np.asarray(own) == own[-1]])[:-1].astype(np.int64) for own in ids]
    parts = tuple(map(len, ids)) if len(ids) > 1 else None
    example = Example(np.concatenate(ids), np.concatenate(types), parts=parts)
    expected = attention_maps(network, example, {1: [1]})
    for answer, own in zip(found["answers"], expected, strict=True):
        ((layer, (head,)),) = [(one["layer"], one["heads"]) for one in answer["layers"]]
        assert (layer, head["head"]) == (1, 1)
        np.testing.assert_allclose(head["weights"], own[1][0], atol=1e-5)


def test_attention_beyond_the_limit_is_not_computed(server: Served):
    """The answer grows with the square of the tokens."""
    body = {"inputs": "a " * 1098, "layers": [0, 1], "model": "long"}
    refused, error, _ = server.post("/v1/attention", body)
    message = "the answer would have 4,840,000 attention weights; at most 4,194,304"
    assert (refused, error["error"]["message"]) == (413, message)
    one = {**body, "inputs": "a " * 298, "layers": [0], "heads": [0]}
    status, found, _ = server.post("/v1/attention", one)
    weights = np.asarray(found["answers"][0]["layers"][0]["heads"][0]["weights"])
    assert (status, weights.shape) == (200, (300, 300))
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/search", {"inputs": "a", "model": "words"}, 422, "not for search"),
        ("/v1/search", {"inputs": 5, "model": "index"}, 422, "a text or a list of texts"),
        ("/v1/search", {"inputs": "a", "model": "index", "by": "sense"}, 422, "by"),
        ("/v1/search", {"inputs": "a", "model": "index", "top_k": 0}, 422, "top_k"),
        (
            "/v1/search",
            {"inputs": ["a"] * 2048, "model": "index", "top_k": 10**9},
            413,
            "10,240 texts; at most",
        ),
        ("/v1/label", {"inputs": ["a"], "model": "words"}, 422, "does not predict labels"),
        ("/v1/label", {"inputs": ["a"], "model": "pairs"}, 422, "does not predict labels"),
        ("/v1/label", {"inputs": [" ", ""], "model": "topics"}, 422, "no text to choose from"),
        ("/v1/label", {"inputs": [], "model": "topics"}, 422, "inputs"),
        ("/v1/label", {"inputs": ["a", 5], "model": "topics"}, 422, "inputs"),
        ("/v1/label", {"inputs": ["a"], "count": 0, "model": "topics"}, 422, "count"),
        ("/v1/topics", {"inputs": ["a", "b"], "model": "words"}, 422, "topics need at least 3"),
        (
            "/v1/topics",
            {"inputs": ["a"] * 5, "count": 9, "model": "words"},
            422,
            "topics; lower count",
        ),
        ("/v1/topics", {"inputs": ["a"] * 5, "model": "topics"}, 422, "not for embed"),
        ("/v1/topics", {"inputs": ["a"] * 5, "count": 1, "model": "words"}, 422, "count"),
        ("/v1/duplicates", {"inputs": ["a"], "threshold": 0, "model": "words"}, 422, "threshold"),
        ("/v1/duplicates", {"inputs": "a", "model": "words"}, 422, "inputs"),
        (
            "/v1/explain",
            {"inputs": "a", "model": "vectors"},
            422,
            "the model vectors does not support explanations",
        ),
        (
            "/v1/explain",
            {"inputs": "a", "model": "topics", "method": "magic"},
            422,
            "method 'magic' is not known",
        ),
        (
            "/v1/explain",
            {"inputs": "red1 " * 40 * 25, "model": "topics"},
            413,
            "tokens; at most 131,072 in a",
        ),
        ("/v1/attention", {"layers": [2]}, 422, "there is no layer 2; the layers are 0..1"),
        (
            "/v1/attention",
            {"layers": [0], "heads": [2]},
            422,
            "there is no head 2 in these layers; they have 0-1",
        ),
        ("/v1/attention", {"layers": []}, 422, "layers: List should have at least 1 item"),
        (
            "/v1/attention",
            {"layers": [0], "inputs": ["a", "b"]},
            422,
            "an input must be a text, or an object with text",
        ),
        ("/v1/attention", {"layers": [0], "model": "images"}, 422, "images shows no attention"),
        (
            "/v1/attention",
            {"layers": [0], "model": "translations"},
            422,
            "translations shows no attention",
        ),
        ("/embed?model=vectors", b'{"inputs": "\\ud83d a"}', 422, "ud83d', which is half of a"),
        ("/tokenize?model=topics", b'{"inputs": "\\uDE00"}', 422, "half of a surrogate pair"),
        ("/models/tags", {"inputs": None}, 422, "an input must be a text"),
        ("/models/tags", {"inputs": 7}, 422, "an input must be a text"),
        ("/models/vectors", {"inputs": "a", "prompt_name": ["a"]}, 422, "prompt_name must be"),
        ("/pipeline/question-answering/tags", {"inputs": "a"}, 422, "for token-classification"),
        (
            "/models/topics",  # as the client asks for zero-shot classification
            {"inputs": "a", "parameters": {"candidate_labels": ["x"]}},
            422,
            "the model topics is for text-classification, not for zero-shot-classification",
        ),
        ("/models/words", {"inputs": "[MASK] " * 50_000}, 413, "250,000 candidates; at most 209,7"),
    ],
)
def test_requests_that_are_refused(server: Served, path: str, body: Any, status: int, message: str):
    if path == "/v1/attention":
        body = {"inputs": "a", "model": "vectors", **body}
    found, error, _ = server.post(path, body)
    assert found == status
    assert message in str(error["error"])


def test_escaped_characters_are_read(server: Served):
    """A pair of halves is a character, and a backslash may be escaped itself."""
    for text in ("\U0001f600", "\\ud800"):
        (tokens,) = server.post("/tokenize?model=vectors", {"inputs": text})[1]
        assert tokens[1]["text"] == text


def _rounded(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_rounded(each) for each in answer]
    return {k: pytest.approx(v, abs=1e-4) if k == "score" else v for k, v in answer.items()}


def test_the_paths_are_described(server: Served):
    found = server.get("/openapi.json")[1]["paths"]
    example = found["/v1/classify"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert example["inputs"][0] == "a text"
    assert {"/v1/embeddings", "/embed", "/rerank", "/models/{name}", "/v1/rank"} <= {*found}
    attention = found["/v1/attention"]["post"]
    shown = attention["responses"]["200"]["content"]["application/json"]["example"]
    assert {*shown["answers"][0]} == {"tokens", "layers"}
    info = server.get("/info")[1]
    assert {each["name"]: each["task"] for each in info["models"]}["words"] == "fill"
