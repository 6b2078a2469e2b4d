"""The Chinese table is complete: what people read is in it, and nothing else is."""

import html
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from ownbert.fitting.finished_folder import write_fit_card
from ownbert.fitting.report.conclusions import give_advice
from ownbert.fitting.report.contents import LeaderboardRow, Report
from ownbert.fitting.report.report import as_json, as_page, as_text
from ownbert.inspect.explain.faithfulness import Faithfulness, faithfulness_table
from ownbert.inspect.pruning import heads_table
from ownbert.inspect.trace.trace import EXAMPLE, formula_of, trace_attention
from ownbert.inspect.trace.trace import as_page as trace_page
from ownbert.language import translated, translated_page
from ownbert.language.catalogue import CHINESE, catalogue
from ownbert.language.messages import Message, names_of
from ownbert.tables.tables import place
from ownbert.tasks.rows import Row
from ownbert.train.display import describe, live_parts
from support.fit_report import made_report
from support.shown_texts import (
    SOURCE,
    entries_to_add,
    is_shown,
    messages,
    modules,
    prose,
    wrong_values,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HAN = "[\u4e00-\u9fff]"
TABLES = catalogue(CHINESE)
TEXTS, TEMPLATES = TABLES[""], TABLES["page"]

# Modules whose sentences are for programmers (exceptions of Python, warnings of Transformers'
# classes), or stand in pictures, which are drawn with fonts that may have no Chinese.
NOT_TRANSLATED = (
    "__init__.py",
    *("transformers/", "nn/", "views/", "batches/layout.py", "families/marian.py"),
    *(f"corpus/{n}.py" for n in ("cooccurrence", "pretraining_examples")),
    *("inspect/explain/attribution.py", "vision/patches.py", "vision/relevance_maps.py"),
    *("train/training_curves.py", "train/distributed.py", "train/optimizers.py"),
    # Answers of a server, which are for programs.
    *(f"serve/{n}.py" for n in ("app", "exchange", "gate", "scheduler", "served_model", "service")),
    *(f"serve/{n}.py" for n in ("embedding_apis", "huggingface_api", "native_api")),
    *("text/build.py", "text/text_parts.py", "text/tokenizer.py"),
)
# What looks like prose and is code: names of styles and fields, others' messages, commands.
NOT_PROSE = {
    # Examples of requests to a server.
    *("Anna lives in Rome", "Anna lives in Rome.", "another one", "one ending"),
    "the bytes of an image in base64",
    # Labels of pictures.
    *("Average precision", "Positive label:", "ROC curve, area"),
    *("drop in probability", "with only the top words", "without the top words"),
    "No such command '(.+?)'",
    "No such option: (-\\d\\S*)",
    "not enough memory",
    *("fit dashed", '"number bar"', "scroll tall", "not bold cyan", "translate score"),
    *(
        "Invalid value for",
        "can't allocate memory",
        "could not create a primitive",
        "could not execute a primitive",
        "field larger",
        "integer string conversion",
        "Object arrays",
    ),
    *("from transformers import", '"a text with a [MASK]"', "axes fraction", "offset points"),
    *("importance of heads, by", "that are left", "thousand tokens per second"),
    "--train train.csv --dev dev.csv -o classifier",
    *("Predictor has no option", "Predictor has no attribute", "embed has no option"),
    *("search by", "the structure of a model has no", "the threshold is"),
    '{"prompt": "a text", "choices": ["one choice", "another"]}',
    '["a text", "another, longer one"]',
    '[("a question", "one choice"), ("a question", "another")]',
}


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")


def test_every_message_is_in_the_table():
    assert len(messages()) > 500
    missing = [message for message in sorted(messages()) if message not in TEXTS]
    assert not missing, entries_to_add(missing)


def test_templates_name_their_values():
    assert not wrong_values()


def test_every_sentence_that_is_shown_is_in_the_table():
    """What stands between the values of sentences; some are put together from several."""
    known = "\n".join([*TEXTS, *TEMPLATES, *TABLES["help"], *TABLES["default"]])
    missing = {
        (text, module)
        for module in modules()
        if not module.startswith(NOT_TRANSLATED)
        for text in prose(module)
        if re.sub("^(error|note|warning): ", "", text) not in known and "\n" not in text
    }
    missing = {text: module for text, module in sorted(missing) if text not in NOT_PROSE}
    assert not missing, f"no entry of src/ownbert/language/zh.po has these parts: {missing}"


def test_nothing_in_the_table_is_stale():
    stale = [text for text in TEXTS if not is_shown(text)]
    assert not stale, f"remove from src/ownbert/language/zh.po: {stale}"
    files = "".join((SOURCE / name).read_text(encoding="utf-8") for name in PAGE_FILES)
    assert not [text for text in TEMPLATES if text not in files]


PAGE_FILES = (
    *("templates/frame.html", "templates/report.html"),
    *("inspect/explain/page.html", "inspect/explain/page.js"),
    *("inspect/internals/words.js",),
    *("inspect/trace/page.html", "inspect/trace/page.js"),
)


def test_translations_are_chinese_and_keep_their_values():
    plain = re.compile(r"[A-Za-z0-9²，（）,:、：；。/{}~ ='-]*")  # names and formulas only
    for text, translation in TEXTS.items():
        for options in (False, True):
            names = [sorted(names_of(each, options=options)) for each in (text, translation)]
            assert names[0] == names[1], text
        words = re.sub(r"\{.*?\}", "{}", translation)
        assert re.search(HAN, words) or plain.fullmatch(words), text
        assert not re.search("回答|作答|编号", translation), text
        for option in re.findall(r"--[a-z-]{2,}", text):
            assert option in translation, text


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (Message("no such folder: {folder}", "a b"), "目录不存在：a b"),
        (Message("{name} is {value}; it must be {wanted}", "--seed", "'x'", "a whole number"),
         "--seed 为 'x'；须为整数"),
        (Message("no such folder: {folder}", place("a.csv", 7)), "目录不存在：a.csv 第 7 行"),
        (Message("cannot read {path}: {reason}", "a", "{x}"), "无法读取 a：{x}"),
        (Row(3, ("a",)).place(""), "第 3 行"),
        ("it turned from one to another", "it turned from one to another"),
        ("a\nb: c {0} {~}", "a\nb: c {0} {~}"),
        ("", ""),
        (Message("warning: {count:,} {name!t} {unit!t} have an empty text: {places}",
                 6, "dev", "documents", "row 1"),
         "警告：验证文档中有 6 个文本为空：row 1"),
    ],
)  # fmt: skip
def test_messages(text: str, shown: str):
    assert translated(text) == shown


def test_english_stays_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OWNBERT_LANGUAGE", "en")
    for text in ("no such folder: a", "loss 1.0", '<html lang="en">', "no such folder: {}"):
        assert translated(text) == translated_page(text) == text


def english_words(text: str) -> list[str]:
    """Pairs of English words in a text."""
    return re.findall(r"[A-Za-z]{3,} [a-z]{3,}", text)


def reports() -> list[Report]:
    """Reports that say all kinds of things; labels, texts and settings are no English words."""
    base = replace(
        made_report(4, 200),
        labels=("甲", "乙", "丙", "丁"),
        texts=["文本"] * 200,
        best="blend of all",
        leaderboard=(
            LeaderboardRow("TF-IDF of 1 to 2 words", "linear", 0.80, 0.01, 0.79, 4.0, 9000, 99.0),
            LeaderboardRow(
                "network, fine-tuned", "network", 0.81, 0.01, None, 90.0, 9000, 9.0, 0.5
            ),
            LeaderboardRow("blend of all", "blend", 0.82, 0.01, None, 95.0, 9000, 5.0),
        ),
        data={"labelled texts": 5, "texts without labels": 9, "kind of text": "words"},
        settings={"minutes": 1},
    )
    assert base.scores is not None
    named = zip(base.scores.labels, base.labels, strict=True)
    weak = [replace(one, label=name, f1=0.2) for one, name in named]
    base = replace(base, scores=replace(base.scores, labels=weak))
    made = [
        base,
        replace(base, margin=None, train_counts=(3, 4, 50, 60), label_errors=()),
        replace(base, best="TF-IDF of 1 to 2 words", minutes_curve=None, drift=None),
        replace(base, calibration=None, train_counts=(3, 50, 50, 60)),
        replace(base, leaderboard=base.leaderboard[1:], held_out=None),
        replace(base, task="regress", metric="spearman", scores=None, label_errors=()),
    ]
    first = replace(base.leaderboard[1], rows=40, first_score=0.9)
    others = [replace(row, first_score=0.7) for row in (base.leaderboard[0], base.leaderboard[2])]
    made.append(replace(base, best="TF-IDF of 1 to 2 words", leaderboard=(first, *others)))
    far = replace(base.leaderboard[2], score=0.99)
    made.append(
        replace(base, network="network, fine-tuned", leaderboard=(*base.leaderboard[:2], far))
    )
    return [replace(one, advice=give_advice(one)) for one in made]


@pytest.mark.usefixtures("chinese")
def test_a_report_is_chinese_and_its_json_english(tmp_path: Path):
    for report in reports():
        page = as_page(report)
        assert '<html lang="zh">' in page
        body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
        titles = re.findall(r'(?:title|aria-label)="([^"]*)"', body)
        for text in [*titles, *re.findall(r">([^<>]+)<", body), *as_text(report).splitlines()]:
            assert not english_words(html.unescape(text)), text
        assert not re.search(HAN, " ".join(as_json(report)["headline"]))
        assert not re.search(HAN, "".join(one.sentence for one in report.advice).translate(_LABELS))
        write_fit_card(tmp_path, report)
        card = (tmp_path / "README.md").read_text()
        lines = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`", "", card, flags=re.DOTALL)
        assert not english_words(lines)
        assert "macro F1" not in card
        assert not re.search(r"\d rows", page)
        assert "## 数据与设置" in card
        assert "library_name: ownbert" in card


_LABELS = str.maketrans("", "", "甲乙丙丁")


@pytest.mark.usefixtures("chinese")
def test_lines_of_a_run():
    row = {"step": 1200, "evaluation": True, "loss": 2.5, "mlm_loss": 2.5, "mlm_accuracy": 0.25}
    row |= {"unigram_loss": 6.1, "uniform_loss": 9.2, "macro_f1": 0.5, "tokens_per_second": 9e3}
    for text in (describe(row), *live_parts(row, row)):
        assert not re.search("[a-z]{4,}", text.replace("tokens/s", "")), text
    assert describe(row).startswith("第 1,200 步  验证集")


@pytest.mark.usefixtures("chinese")
def test_the_columns_of_tables_are_aligned():
    head, *rows = heads_table(np.ones((2, 2)), [(0, 0), (1, 1)])
    assert rows[0].startswith("第 0 层")
    assert {cell_len(row) for row in rows} == {cell_len(head)}
    measured = Faithfulness(np.ones((3, 2)), np.ones((3, 2)), np.ones(3))
    head, *rows = faithfulness_table({"random order": measured, "leave_one_out": measured})
    assert rows[0].startswith("随机顺序 ")
    assert {cell_len(row) for row in rows} == {cell_len(head)}


@pytest.mark.usefixtures("chinese")
def test_a_trace_is_chinese_and_its_formulas_are_those_of_the_page():
    trace = trace_attention(**EXAMPLE, scale=True, digits=1)
    page = trace_page(trace)
    assert '<html lang="zh">' in page
    assert '"key": "weights", "title": "注意力权重"' in page
    assert trace.as_json()["steps"][0]["meaning"] == "one row per token"
    matrices = {step.key: step.values for step in trace.steps}
    assert formula_of(trace.step("rounded"), 0, 1, matrices).split(" = ")[1].endswith("舍入")
    assert "(=) 舍入" in page
    assert not re.search(
        r"[a-z]{4,} [a-z]{4,}", re.sub(r"queries|keys|inputs|values", "", str(trace))
    )


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("kind", ["report", "trace"])
def test_a_browser_shows_the_pages(kind: str, tmp_path: Path):
    made = as_page(reports()[0]) if kind == "report" else trace_page(trace_attention(**EXAMPLE))
    page = tmp_path / "page.html"
    page.write_text(made, encoding="utf-8")
    address = page.as_uri() + ("" if kind == "report" else "#weights.0.1")
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", address),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    said = "<button>模型</button>" if kind == "report" else "9. 注意力权重 "
    assert said in done.stdout
