"""The pages in a browser: what they show, how quickly, and that they fit small screens."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.inspect.internals.observation import observation_of_text
from ownbert.inspect.trace.model_trace import trace_model
from ownbert.inspect.trace.trace import as_page as trace_page
from ownbert.nn.model import Model
from ownbert.pages import page as filled_page
from ownbert.text.tokenizer import Tokenizer
from support.browser import CHROMIUM, in_browser
from support.cli import run_cli
from support.tiny import SPECIAL

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
WORDS = [f"word{i}" for i in range(60)]
TOKENIZER = Tokenizer.blank([*SPECIAL, *WORDS])
# A wide page has columns or boxes that leave the screen.
FITS = """document.documentElement.scrollWidth <= innerWidth"""


def model(layers: int = 3, heads: int = 4, tokens: int = 64, head: str = "classification") -> Model:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=16 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=16 * heads,
        max_position_embeddings=tokens,
        initializer_range=0.2,
    )
    return Model(config, [head], labels=["late", "lost", "fine"]).eval()


def words(count: int) -> str:
    return " ".join(np.random.default_rng(0).choice(WORDS, count))


BOTH = "attention_rollout,leave_one_out"


def page(folder: Path, text: str, method: str = BOTH, **sizes: int) -> str:
    save(model(**sizes), folder / "model", tokenizer=TOKENIZER)
    written = folder / "page.html"
    given = ("explain", folder / "model", text, "--html", written, "--method", method)
    done = run_cli(*given)
    assert done.returncode == 0, done.stderr
    return written.read_text(encoding="utf-8")


def test_a_small_dark_screen_shows_the_head_of_the_address(tmp_path: Path):
    shown = in_browser(
        page(tmp_path, words(9)),
        f"""await until(() => document.querySelector("aside h4"));
        const fits = {FITS}, stage = document.querySelector(".stage");
        const name = () => document.querySelector(".stage h3").textContent;
        const token = () => document.querySelector("aside h4").textContent;
        const read = () => [...document.querySelectorAll("aside ol")[0].children]
          .map(line => [line.children[0].title, Number(line.children[2].textContent)]);
        const press = (target, key) =>
          target.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}));
        const first = [name(), token(), read()];
        press(stage, "ArrowDown");
        const second = token();
        press(document.querySelector(".glance"), "ArrowRight");
        await until(() => name().endsWith("3"));
        press(stage, "m");
        const kept = location.hash, colour = getComputedStyle(document.body).backgroundColor;
        const choices = [...document.querySelectorAll("#method option")].map(each => each.value);
        const targets = document.querySelectorAll(".targets button").length;
        return {{ fits, first, second, kept, colour, choices, targets }};""",
        tmp_path / "profile",
        width=390,
        fragment="row=0&layer=1&head=2&token=4&view=matrix&method=leave_one_out",
        dark=True,
    )
    assert shown["fits"]
    name, token, lines = shown["first"]
    text = words(9).split()
    assert (name, token) == ("Layer 1, head 2", f"4 {text[3]}")
    ids = [TOKENIZER.cls_id, *TOKENIZER.encode_batch([" ".join(text)])[0], TOKENIZER.sep_id]
    weights = trace_model(model(), TOKENIZER, " ".join(text), 1, 2)["weights"][4]
    assert len(ids) == len(weights) == 11
    order = np.argsort(-weights)[: len(lines) - 1]  # the last line is that of all others
    for (key, weight), index in zip(lines, order, strict=False):
        assert weights[int(key)] == pytest.approx(weights[index], abs=weights.max() / 100)
        assert weight == pytest.approx(weights[int(key)], abs=0.01)
    assert shown["second"] == f"5 {text[4]}"
    kept = "method=leave_one_out&row=0&target=0&sequence=0&layer=1&head=3&token=5"
    assert shown["kept"] == f"#{kept}&answer=0&view=arcs"
    assert shown["colour"] == "rgb(17, 21, 24)"
    assert shown["choices"] == ["attention_rollout", "leave_one_out"]
    assert shown["targets"] == 3  # the likeliest labels


@pytest.mark.slow
def test_the_downloads_are_a_picture_and_the_numbers(tmp_path: Path):
    shown = in_browser(
        page(tmp_path, words(9)),
        """await until(() => document.querySelector(".place canvas"));
        const blobs = [], link = URL.createObjectURL;
        URL.createObjectURL = blob => { blobs.push(blob); return link(blob); };
        document.getElementById("json").click();
        document.getElementById("png").click();
        await until(() => blobs.length === 2);
        const facts = JSON.parse(await blobs[0].text());
        const picture = await createImageBitmap(blobs[1]);
        return { facts, kind: blobs[1].type, size: [picture.width, picture.height] };""",
        tmp_path / "profile",
    )
    assert shown["kind"] == "image/png"
    assert min(shown["size"]) > 600
    facts = shown["facts"]
    assert facts["explanations"][0][0]["method"] == "attention_rollout"
    inside = facts["inside"]
    assert inside["tokens"][0][1:-1] == words(9).split()
    expected = trace_model(model(), TOKENIZER, words(9), 0, 0)["weights"]
    for row, line in zip(expected, inside["head"]["weights"], strict=True):
        assert sum(weight for _, weight in line) == pytest.approx(1, abs=0.05)
        assert dict(line)[int(row.argmax())] == pytest.approx(row.max(), abs=0.005)
    assert len(inside["norms"]) == 4 * 11


@pytest.mark.slow
def test_a_trace_shows_attention_first_and_no_table_wider_than_the_screen(tmp_path: Path):
    own = model(head="mlm")
    trace = trace_model(own, TOKENIZER, "word1 [MASK] word3", 2, 1)
    ids = [2, 6, 4, 8, 3]
    html = trace_page(trace, inside=observation_of_text(own, TOKENIZER, ids))
    shown = in_browser(
        html,
        f"""await until(() => document.querySelector(".place canvas"));
        document.querySelectorAll("details").forEach(each => {{ each.open = true; }});
        await until(() => document.querySelectorAll("details").length
          === document.querySelectorAll("details .scroll").length);
        const headings = [...document.querySelectorAll("h2")].map(each => each.textContent.trim());
        return {{ fits: {FITS}, headings, head: document.querySelector(".stage h3").textContent,
          wide: [...document.querySelectorAll("table, main canvas")]
            .filter(each => each.getBoundingClientRect().right > innerWidth).length }};""",
        tmp_path / "profile",
        width=390,
    )
    assert shown["fits"]
    assert shown["wide"] == 0
    assert shown["head"] == "Layer 2, head 1"
    first, second, third, fourth = shown["headings"][:4]
    assert (first, second) == ("Attention", "Through the layers")
    assert third == "Step by step: Layer 2, head 1"
    assert fourth.startswith("1. incoming hidden states")


@pytest.mark.slow
def test_texts_of_one_answer_are_parts_to_choose_from(tmp_path: Path):
    save(model(head="choice"), tmp_path / "model", tokenizer=TOKENIZER)
    rows = tmp_path / "rows.csv"
    rows.write_text("sent1,ending0,ending1,label\nword1,word3,word4 word5,0\n")
    written = tmp_path / "page.html"
    done = run_cli("explain", tmp_path / "model", rows, "--html", written)
    assert done.returncode == 0, done.stderr
    shown = in_browser(
        written.read_text(encoding="utf-8"),
        """await until(() => document.querySelector(".place canvas"));
        const select = document.querySelector(".part select");
        const note = () => document.querySelector(".part .note").textContent;
        const names = [...select.options].map(each => each.textContent), first = note();
        select.value = 1;
        select.onchange();
        await until(() => note() !== first);
        return { names, first, second: note(), hash: location.hash };""",
        tmp_path / "profile",
    )
    assert shown["names"] == ["part 1 of 2", "part 2 of 2"]
    assert shown["first"].startswith("3 layers of 4 heads, 5 tokens.")
    assert shown["second"].startswith("3 layers of 4 heads, 6 tokens.")
    assert "sequence=1" in shown["hash"]


@pytest.mark.slow
def test_the_page_is_chinese(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    words_of_script = filled_page("inspect/internals/inspector.js").split("const text =")[0]
    for line in re.findall(r"^  \w+: \"(.*)\",$", words_of_script, re.MULTILINE):
        assert re.search("[\u4e00-\u9fff]", line) or not re.search("[A-Za-z]{3}", line), line
    shown = in_browser(
        page(tmp_path, words(80), "gradient_x_input"),
        """await until(() => document.querySelector(".place canvas"));
        return document.body.innerText;""",
        tmp_path / "profile",
        fragment="row=0&token=3",
    )
    assert "灰色的结尾没有读入：文本太长" in shown  # the model takes 64 tokens
    text = re.sub(r"word\d+|gradient x input|logit lens", "", shown)
    assert not re.findall("[A-Za-z]{4,} [a-z]{2,}", text)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [512, 2048])
def test_long_texts_stay_fluent(tmp_path: Path, tokens: int):
    """12 layers of 12 heads: under 10 MB, painted in 2 seconds, 30 pictures a second."""
    sizes = {"layers": 12, "heads": 12, "tokens": tokens}
    html = page(tmp_path, words(tokens - 2), "gradient_x_input", **sizes)
    assert len(html.encode()) < 10_000_000
    shown = in_browser(
        html,
        """const name = "first-contentful-paint";
        await until(() => performance.getEntriesByName(name).length);
        const found = { paint: performance.getEntriesByName(name)[0].startTime, seen: 0 };
        await until(() => document.querySelector(".place canvas"));
        for (const button of document.querySelectorAll(".stage button[aria-pressed]")) {
          button.click();
          await frame();
          const canvases = document.querySelectorAll(".place canvas:not(.glass)");
          const canvas = canvases[canvases.length - 1], box = canvas.getBoundingClientRect();
          const times = [], panel = document.querySelector("aside");
          for (let i = 0, before = ""; i < 60; i++) {
            const share = 0.15 + 0.8 * (i * 23 % 60) / 60;
            const x = box.left + share * box.width, y = box.top + share * box.height;
            point(canvas, "pointermove", x, y);
            times.push(await frame());
            found.seen += panel.textContent !== before;
            before = panel.textContent;
          }
          found[button.textContent] = (times[times.length - 1] - times[0]) / (times.length - 1);
        }
        return found;""",
        tmp_path / "profile",
    )
    assert shown["paint"] < 2000
    assert shown["seen"] > 100  # it did follow the pointer
    assert shown["Arcs"] < 1000 / 30
    assert shown["Matrix"] < 1000 / 30
