"""Explanations: true where the truth is known, the same as elsewhere, and of every head."""

import json
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import ownbert
from ownbert import Explainer, InputError, explain
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.inspect.explain.explanation import (
    Explanation,
    Word,
    sentences_of,
    words_of,
    write_page,
)
from ownbert.inspect.explain.faithfulness import RANDOM, best_method
from ownbert.inspect.explain.methods import METHODS, integrated_gradients, shapley
from ownbert.nn.model import Model
from ownbert.tasks.row_objectives import SingleLabelObjective
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import Tokenizer
from support import tokenizer_folders
from support.browser import CHROMIUM, in_browser
from support.cli import refusal, run_cli
from support.parity_models import their_model
from support.shared import made_once
from support.tiny import SPECIAL, TOKENIZER, change_config, made

WORDS = [f"w{i}" for i in range(40)]
KEYS = WORDS[:4]  # one of them stands in every text, and is its label
KEYED = Tokenizer.blank([*SPECIAL, *WORDS])


def keyed_texts(count: int, seed: int) -> tuple[list[str], list[int]]:
    rng = np.random.default_rng(seed)
    texts, labels = [], rng.integers(0, len(KEYS), count).tolist()
    for label in labels:
        words = rng.choice(WORDS[len(KEYS) :], 9).tolist()
        words.insert(int(rng.integers(0, 10)), KEYS[label])
        texts.append(" ".join(words))
    return texts, labels


def keyed_model() -> Model:
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 16, "initializer_range": 0.1}
    sizes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = EncoderConfig(vocab_size=len(SPECIAL) + len(WORDS), **sizes)
    return Model(config, ["classification"], labels=KEYS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that has learnt that one word decides, and the same one before."""
    folder = made_once(tmp_path_factory, "keyed", _learn_keys)
    return {name: folder / name for name in ("trained", "untrained")}


def _learn_keys(folder: Path) -> None:
    model = keyed_model()
    save(model, folder / "untrained", tokenizer=KEYED)
    texts, labels = keyed_texts(2000, 0)
    ids = KEYED.encode_batch(texts)
    examples = [
        # A tenth of the words is masked, so that the model knows the mask as pretrained ones do.
        Example(np.asarray([KEYED.cls_id, *own, KEYED.sep_id]), np.zeros(12, int), label=label)
        for own, label in zip(ids, labels, strict=True)
    ]
    rng = np.random.default_rng(1)
    for example in examples:
        hidden = rng.random(12) < 0.1
        hidden[[0, -1]] = False
        example.token_ids[hidden & (example.token_ids >= 5 + len(KEYS))] = KEYED.mask_id
    objective, optimizer = SingleLabelObjective(), torch.optim.Adam(model.parameters(), 3e-3)
    for start in range(0, 2000 * 4, 50):
        batch = pack(examples[start % 2000 : start % 2000 + 50])
        loss = objective(model(batch).logits["classification"], batch)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    save(model, folder / "trained", tokenizer=KEYED)


def share_of_keys(folder: Path, method: str) -> float:
    """How often the word that decides has the largest value."""
    texts, labels = keyed_texts(40, 7)
    found = explain(folder, texts, method=method)
    pairs = zip(found, labels, strict=True)
    return float(np.mean([e.word(int(e.values.argmax())) == KEYS[label] for e, label in pairs]))


@pytest.mark.parametrize(
    ("method", "least"),
    [
        ("integrated_gradients", 0.95),
        ("leave_one_out", 0.95),
        # Only as true as the score is linear.
        *(
            pytest.param(method, 0.6, marks=pytest.mark.slow)
            for method in ("gradient_x_input", "attention_x_gradient")
        ),
    ],
)
def test_the_word_that_decides_has_the_largest_value(
    folders: dict[str, Path], method: str, least: float
):
    assert share_of_keys(folders["trained"], method) >= least
    assert share_of_keys(folders["untrained"], method) < 0.5


def test_faithfulness_tells_methods_from_chance(folders: dict[str, Path]):
    texts, _ = keyed_texts(20, 8)
    found = ownbert.faithfulness(folders["trained"], texts, methods=["integrated_gradients"])
    own, chance = found["integrated_gradients"], found[RANDOM]
    assert own.comprehensiveness.shape == own.sufficiency.shape == (20, 4)
    assert own.comprehensiveness.mean() > chance.comprehensiveness.mean() + 0.3
    assert own.sufficiency.mean() < chance.sufficiency.mean() - 0.2
    assert best_method(found) == "integrated_gradients"
    row = own.row()
    assert row["comprehensiveness"] == pytest.approx(own.comprehensiveness.mean())
    with pytest.raises(InputError, match="method 'magic' is not known"):
        ownbert.faithfulness(folders["trained"], texts, methods=["magic"])
    with pytest.raises(InputError, match="no row has 4 words"):
        ownbert.faithfulness(folders["trained"], ["w1 w2"])


def test_integrated_gradients_are_those_of_transformers_weights(folders: dict[str, Path]):
    """The integral by a hand-written sum over the padded model of Transformers."""
    theirs = AutoModelForSequenceClassification.from_pretrained(folders["trained"]).eval()
    text = keyed_texts(1, 9)[0][0]
    (encoded,) = Explainer(folders["trained"]).encoded([text])
    ((target, (explained,)),) = Explainer(folders["trained"]).explained_targets(encoded)
    ids = torch.from_numpy(explained.example.token_ids)
    masked = torch.from_numpy(explained.without(range(len(encoded.words))))
    table = theirs.bert.embeddings.word_embeddings
    start, end = table(masked).detach(), table(ids).detach()
    total = torch.zeros_like(start)
    places, weights = np.polynomial.legendre.leggauss(64)
    for place, weight in zip((1 + places) / 2, weights / 2, strict=True):
        point = (start + place * (end - start)).float().requires_grad_()
        score = theirs(inputs_embeds=point[None]).logits[0, KEYS.index(target.name)]
        total += weight * torch.autograd.grad(score, point)[0]
    expected = (total * (end - start)).sum(-1).numpy()[1:-1]
    found = integrated_gradients(explained)
    assert found.gap is not None
    assert found.gap <= 0.02
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found.values, expected, atol=0.03 * largest)
    ends = explained.values([masked.numpy(), ids.numpy()])
    assert found.values.sum() == pytest.approx(ends[1] - ends[0], rel=0.021)


def test_shapley_values_of_two_words_are_the_means_over_both_orders(folders: dict[str, Path]):
    (encoded,) = Explainer(folders["trained"]).encoded(["w0 w9"])
    ((_, (explained,)),) = Explainer(folders["trained"]).explained_targets(encoded)
    none, first, second, both = explained.values(
        [explained.without(t) for t in ([0, 1], [1], [0], [])]
    )
    expected = [(first - none + both - second) / 2, (second - none + both - first) / 2]
    np.testing.assert_allclose(shapley(explained).values, expected, atol=1e-5)


MULTILABEL = {"name": "multilabel", "threshold": 1e-9}
CASES: dict[str, tuple[Any, dict[str, Any], Any, int]] = {
    # By head: changes of config.json, a row, how many targets there are.
    "classify": ("classification", {"ownbert_task": {"name": "classify"}}, "a b c", 1),
    "pair": ("classification", {"ownbert_task": {"name": "classify", "pair": True}}, ("a", "b"), 1),
    "multilabel": ("classification", {"ownbert_task": MULTILABEL}, "a b c", 3),
    "regress": ("classification", {"ownbert_task": {"name": "regress"}}, "a b", 3),
    "tags": ("tokens", {"id2label": {"0": "B-x", "1": "B-y", "2": "B-z"}}, "a b c", 3),
    "answer": ("span", {}, {"question": "a", "context": "b c"}, 1),
    "choose": ("choice", {}, ("a", ["b", "c", "d"]), 1),
    "mask": ("mlm", {}, "a [MASK] c", 1),
}


@pytest.mark.parametrize("case", CASES)
def test_every_head_is_explained_by_the_words_of_its_row(tmp_path: Path, case: str):
    head, changes, row, count = CASES[case]
    made(tmp_path / "model", head)
    change_config(tmp_path / "model", **changes)
    for method in METHODS:
        found = explain(tmp_path / "model", [row] if case == "mask" else row, method=method)
        assert len(found) == count, method
        for each in found:
            texts = [word for text in each.texts for word in text.split() if word != "[MASK]"]
            assert [each.word(i) for i in range(len(each.words))] == texts, method
            assert np.isfinite(each.values).all(), method
            assert case != "tags" or each.texts == ("a b c",)  # and not a text for each word
            assert method == "attention_rollout" or np.abs(each.values).max() > 0, method
            assert json.loads(json.dumps(each.to_dict()))["method"] == method


def test_a_t5_without_a_mask_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Removed words become unknown tokens, and the page with the attention of all heads opens."""
    tokenizer = Tokenizer.load(tokenizer_folders.t5_folder(tmp_path / "tokenizer"))
    model = their_model("t5", "T5ForTokenClassification", vocab_size=tokenizer.vocab_size)
    model.save_pretrained(tmp_path / "t5")
    tokenizer.save(tmp_path / "t5")
    for found in explain(tmp_path / "t5", "lazy dog", method="leave_one_out"):
        assert [found.word(i) for i in range(2)] == ["lazy", "dog"]
        assert np.abs(found.values).max() > 0
    monkeypatch.chdir(tmp_path)
    run_cli("trace", "t5", "lazy dog", "--html", "page.html")
    assert "data-weights" in Path("page.html").read_text(encoding="utf-8")


def test_what_makes_two_texts_alike(tmp_path: Path):
    made(tmp_path / "model")
    (tmp_path / "model" / "modules.json").write_text("[]")
    (found,) = explain(tmp_path / "model", ("a b", "b c"), method="leave_one_out")
    assert found.target == "similarity"
    vectors = ownbert.Embedder(tmp_path / "model").encode(
        ["a b", "b c", "[MASK] b"], normalize=True
    )
    assert found.probability == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)
    assert found.values[0] == pytest.approx((vectors[0] - vectors[2]) @ vectors[1], abs=1e-4)


def test_an_entity_is_explained_as_a_whole(tmp_path: Path):
    made(tmp_path / "model", "tokens")
    change_config(tmp_path / "model", id2label={"0": "B-X", "1": "I-X", "2": "O"})
    entities = ownbert.Predictor(tmp_path / "model")("a b c d")
    found = explain(tmp_path / "model", "a b c d", method="leave_one_out")
    assert [each.target for each in found] == [f"X: {e['word']}" for e in entities]
    assert [each.probability for each in found] == pytest.approx([e["score"] for e in entities])
    with pytest.raises(InputError, match="the prediction has no 'Y'; it has X"):
        explain(tmp_path / "model", "a b c d", target="Y")


def test_a_word_in_several_windows_is_one_word():
    builder = TextInputBuilder(TOKENIZER, EncoderConfig(vocab_size=11), 6)
    (ids,) = TOKENIZER.encode_batch(["a b c d e f"])
    example, _ = builder.windows(ids, stride=2, most=9)
    words = words_of(example, ["a b c d e f"], TOKENIZER)
    assert ["abcdef".index("a b c d e f"[w.start]) for w in words] == [0, 1, 2, 3, 4, 5]
    for word in words:
        token = TOKENIZER.id_of("a b c d e f"[word.start : word.end])
        assert {int(example.token_ids[p]) for p in word.positions} == {token}
    everywhere = sorted(p for word in words for p in word.positions)
    special = np.isin(example.token_ids, [TOKENIZER.cls_id, TOKENIZER.sep_id])
    assert everywhere == np.flatnonzero(~special).tolist()


def test_pieces_are_joined_to_words_and_words_to_sentences():
    tokenizer = Tokenizer.wordpiece([*SPECIAL, "play", "##ing", "it", "was", "fun", "."])
    text = "Playing was fun. It was."
    (ids,) = tokenizer.encode_batch([text])
    example = Example(np.asarray([2, *ids, 3]), np.zeros(len(ids) + 2, int))
    words = words_of(example, [text], tokenizer)
    assert words[0] == Word(0, 0, 7, (1, 2))
    assert [text[w.start : w.end] for w in sentences_of(words, [text])] == [
        "Playing was fun.",
        "It was.",
    ]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm_roberta"])
def test_accents_that_are_characters_of_their_own_stay_with_their_letters(
    family: str, tmp_path: Path
):
    folder = getattr(tokenizer_folders, f"{family}_folder")(tmp_path / "tokenizer")
    tokenizer, text = Tokenizer.load(folder), unicodedata.normalize("NFD", "un café noir")
    builder = TextInputBuilder(tokenizer, EncoderConfig(vocab_size=tokenizer.vocab_size), 64)
    example, _ = builder.example(builder.ids([text]))
    words = words_of(example, [text], tokenizer)
    assert [text[word.start : word.end] for word in words] == text.split(" ")
    assert sum(len(word.positions) for word in words) == len(builder.ids([text])[0])


def test_mistakes_are_one_line(folders: dict[str, Path], tmp_path: Path):
    trained = folders["trained"]
    for options, message in (
        ({"method": "magic"}, "method 'magic' is not known; use one of integrated_gradients"),
        ({"target": "w9"}, "there is no 'w9'; choose one of w0, w1, w2, w3"),
        ({"by": "letter"}, "by 'letter' is not known; use one of word, sentence"),
    ):
        with pytest.raises(InputError, match=message):
            explain(trained, "w1 w2", **options)
    made(tmp_path / "bert", "mlm")
    with pytest.raises(InputError, match=r"put \[MASK\] into the text"):
        explain(tmp_path / "bert", ["a b"])
    made(tmp_path / "plain")
    with pytest.raises(InputError, match="has no task head"):
        explain(tmp_path / "plain", ["a b"])


def test_each_row_answers_for_its_own_index(folders: dict[str, Path], tmp_path: Path):
    """An empty text has no words, and so no explanation."""
    texts, labels = keyed_texts(3, 5)
    texts, labels = ["", texts[0], "  ", texts[1], texts[2]], [None, labels[0], None, *labels[1:]]
    explainer = Explainer(folders["trained"])
    for rows, expected in ((None, [1, 3, 4]), (4, [1, 3]), (1, [])):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = explainer(texts, rows=rows, method="leave_one_out")
        assert len(warned) == bool(found)
        assert all("texts without words" in str(each.message) for each in warned)
        assert [each.row for each in found] == expected
        for each in found:
            assert (each.texts, each.target) == ((texts[each.row],), KEYS[labels[each.row]])
    done = run_cli("explain", folders["trained"], *texts, "--json")
    assert [json.loads(line)["row"] for line in done.stdout.splitlines()] == [1, 3, 4]
    page = tmp_path / "page.html"
    assert run_cli("explain", folders["trained"], *texts, "--html", page).returncode == 0


def test_on_the_command_line(folders: dict[str, Path], tmp_path: Path, plots: None):
    texts, labels = keyed_texts(3, 5)
    trained = folders["trained"]
    done = run_cli("explain", trained, texts[0], "--top", "1")
    assert done.returncode == 0, done.stderr
    assert KEYS[labels[0]] in done.stdout.splitlines()[1]
    done = run_cli("explain", trained, *texts, "--json", "--method", "leave_one_out")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["target"] for row in rows] == [KEYS[label] for label in labels]
    lines = "\n".join(json.dumps({"text": text}) for text in texts)  # as for predict
    assert "the input is empty" in run_cli("explain", trained, stdin="").stderr
    piped = run_cli("explain", trained, "--json", "--method", "leave_one_out", stdin=lines)
    assert piped.stdout == done.stdout
    # Only as much of a file is read as is explained.
    (tmp_path / "long.jsonl").write_text(f"{lines}\n" * 20 + "no JSON\n")
    first = run_cli("explain", trained, tmp_path / "long.jsonl", "--rows", 1, "--json")
    assert first.stdout.count("\n") == 1, first.stderr
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    picture = tmp_path / "curves.png"
    done = run_cli("faithfulness", trained, tmp_path / "texts.txt", "-o", picture)
    assert done.returncode == 0, done.stderr
    assert "the most faithful on these rows: " in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = tmp_path / "explained.jsonl"
    done = run_cli("explain", trained, *texts, "-o", lines, "--method", "leave_one_out")
    assert (done.returncode, done.stdout) == (0, f"saved {lines}\n")
    assert [json.loads(line) for line in lines.read_text().splitlines()] == rows
    for ending, start in ((".html", b"<!"), (".png", b"\x89PNG")):
        file = tmp_path / f"explained{ending}"
        done = run_cli("explain", trained, texts[0], "-o", file)
        assert (done.returncode, done.stdout) == (0, f"saved {file}\n")
        assert file.read_bytes().startswith(start)
    for options, message in (
        (("-o", "a.csv"), "a.csv: -o must end with .html, .png or .jsonl"),
        (("-o", "a.html", "--html", "b.html"), "-o and --html name two files of the same kind"),
        (("-o", "a.jsonl", "--heads", "0"), "the option --heads requires --html"),
    ):
        assert message in refusal("explain", trained, texts[0], *options)
    found = refusal("explain", trained, texts[0], "--class", "w9")
    assert found == "error: there is no 'w9'; choose one of w0, w1, w2, w3\n"


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
def test_the_page_marks_words_by_the_chosen_method(folders: dict[str, Path], tmp_path: Path):
    page = tmp_path / "page.html"
    texts, labels = keyed_texts(2, 6)
    methods = "integrated_gradients,leave_one_out"
    done = run_cli("explain", folders["trained"], *texts, "--html", page, "--method", methods)
    assert done.returncode == 0, done.stderr
    main = in_browser(
        page.read_text(),
        """await until(() => document.querySelectorAll("article mark").length);
        return document.querySelector("main").innerHTML;""",
        tmp_path / "profile",
        fragment="method=leave_one_out",
    )
    assert main.count("<article>") == 2
    found = explain(folders["trained"], texts, method="leave_one_out")
    for each, label in zip(found, labels, strict=True):
        assert f"<b>{KEYS[label]}</b><span>{each.probability:.3f}</span></button>" in main
    assert "not accounted for" not in main  # only integrated gradients have a gap
    assert main.count('data-share="1.000"') == 2  # the strongest word of each text


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
def test_the_page_shows_hebrew_from_right_to_left(tmp_path: Path):
    text = "לחם טוב, לא?"
    words = tuple(Word(0, start, start + 3, ()) for start in (0, 4))
    found = Explanation(0, (text,), "אוכל", 0.9, "shapley", words, np.array([1.0, 2.0]))
    write_page([found], tmp_path / "page.html", title="page")
    shown = in_browser(
        (tmp_path / "page.html").read_text(),
        """const side = (name, i = 0) => document.querySelectorAll(name)[i].getBoundingClientRect();
        await until(() => document.querySelector("mark"));
        const line = document.createRange(), last = document.querySelector("p.text").lastChild;
        line.setStart(last, last.length - 1);
        line.setEnd(last, last.length);
        return { words: side("mark").left - side("mark", 1).right,
          gap: side(".targets span").left - side(".targets b").right,
          mark: side("mark", 1).left - line.getBoundingClientRect().right };""",
        tmp_path / "profile",
    )
    assert min(shown.values()) > 0, shown
