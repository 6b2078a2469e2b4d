"""Reports of every kind of task as text, JSON and page; the page in a browser."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from ownbert.exceptions import InputError, percent
from ownbert.fitting.finished_folder import write_fit_card
from ownbert.fitting.report.conclusions import give_advice, headline
from ownbert.fitting.report.contents import (
    LeaderboardRow,
    Margin,
    Report,
    bootstrap_margin,
    largest_errors,
)
from ownbert.fitting.report.report import as_json, as_page, as_text, write_report
from ownbert.fitting.report.sections import sections
from ownbert.fitting.report.statistics import calibrate, fit_learning_curve
from ownbert.inference.evaluate import metrics_by_chance
from ownbert.pages import cleaned
from ownbert.tasks.metrics import LabelScore, Ranking, Scores, score_labels
from support.fit_report import made_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LINEAR = LeaderboardRow("TF-IDF", "linear", 0.8, spread=0.01, texts_per_second=9000)
NETWORK = LeaderboardRow("network", "network", 0.83, spread=0.01, texts_per_second=90)


@pytest.fixture(scope="module")
def report() -> Report:
    return made_report()


@pytest.fixture(scope="module")
def many() -> Report:
    return made_report(classes=150, rows=1500)


def small(**changes) -> Report:
    values = {"task": "classify", "metric": "macro_f1", "leaderboard": (LINEAR, NETWORK)}
    values["network"] = "network"
    return Report(**{**values, **changes})


def kinds(report: Report) -> dict[str, str]:
    """The kinds of advice by the first words of its sentences."""
    return {" ".join(one.sentence.split()[:2]): one.kind for one in give_advice(report)}


def test_the_files(report: Report, tmp_path: Path):
    write_report(report, tmp_path / "new")
    assert {p.name for p in (tmp_path / "new").iterdir()} == {
        "report.html",
        "report.txt",
        "report.json",
    }
    values = json.loads((tmp_path / "new/report.json").read_text(encoding="utf-8"))
    assert values["best"] == "blend"
    assert len(values["leaderboard"]) == 5
    assert values["learning_curve"]["further"][0]["at"] == 3200
    assert values["calibration"]["before"]["accuracy"][0] is None  # NaN is not JSON
    first = values["label_errors"][0]
    assert first["place"] == f"train.csv, line {first['row'] + 2}"
    assert np.sum(values["scores"]["confusion"]) == report.held_out
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a file has that name"):
        write_report(report, tmp_path / "file")


@pytest.mark.parametrize("classes", [8, 150])
def test_the_text_fits_in_100_columns(report: Report, many: Report, classes: int):
    text = as_text(report if classes == 8 else many)
    assert max(map(cell_len, text.splitlines())) <= 100
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\ud800-\udfff]", text)
    for section in sections(report):
        assert section.title.upper() in text
    assert text.startswith("blend: accuracy 0.")


def test_the_page_needs_nothing_else_and_no_text_becomes_markup(report: Report):
    page = as_page(report)
    assert not re.search(
        r"""(?:src|href)=(?!"#)|url\(|@import|https?://""", page.split("<p dir")[0]
    )
    assert page.count("<script") == page.count("</script>") == 1
    assert "<img" not in page
    assert "default-src 'none'" in page
    assert max(len(text) for text in re.findall(r'<p dir="auto">(.*?)</p>', page)) < 1000


def test_of_many_classes_only_the_most_confused_pairs(report: Report, many: Report):
    assert 'class="matrix"' in as_page(report)
    page = as_page(many)
    assert 'class="matrix"' not in page
    assert 'id="confusion"' in page
    assert len(page) < 400_000


def test_a_model_that_guesses_says_so_first():
    """With random labels, the report spoke of calibration and of label errors only."""
    rng = np.random.default_rng(0)
    targets, scores = rng.integers(0, 2, 300), rng.normal(size=(300, 2))

    def found(answers: np.ndarray) -> Report:
        def metrics(order: np.ndarray) -> dict[str, float]:
            return dict(score_labels(targets[order], answers, ("no", "yes")).values)

        ranking = Ranking("yes", targets == 1, 1 / (1 + np.exp(-scores[:, 1])))
        own = replace(score_labels(targets, answers, ("no", "yes")), ranking=ranking)
        return small(
            scores=replace(own, values={**own.values, "f1": own.labels[1].f1}),
            chance=metrics_by_chance(metrics, np.arange(300)),
            calibration=calibrate(scores, targets),
            labels=("no", "yes"),
            network="",
            leaderboard=(replace(LINEAR, score=own.values["macro_f1"]),),
        )

    guess = found(scores.argmax(1))
    score = f"{guess.winner.score:.3f}"
    assert re.fullmatch(
        rf"TF-IDF: macro F1 {score}, no better than guessing \(0\.(49|50)\d by chance\); .*",
        headline(guess)[0],
    )
    first, *others = give_advice(guess)
    assert first.sentence.endswith("the predictions are no better than guessing.")
    assert not any("calibrated" in one.sentence or "good enough" in one.sentence for one in others)
    better = found(np.where(rng.random(300) < 0.4, targets, scores.argmax(1)))
    assert re.search(r"TF-IDF: macro F1 0\.\d+ \(0\.\d+ by chance\); the", headline(better)[0])
    assert not any("guessing" in one.sentence for one in give_advice(better))
    text = as_text(better)
    assert re.search(r"metric +value +by chance", text)
    assert "F1 of 'yes'" in text
    # A constant answer is as good on other rows, however many rows have that label.
    assert found(np.zeros(300, dtype=int)).guessing == "no better than guessing"


def test_groups_with_one_label_each_are_not_told_apart_by_chance():
    """30 groups of 20 rows: rows assigned one by one would make a lucky draw significant."""
    rng, clusters = np.random.default_rng(2), np.repeat(np.arange(30), 20)
    truth = rng.integers(0, 2, 30)[clusters]
    guesses = rng.integers(0, 2, 30)[clusters]

    def metrics(order: np.ndarray) -> dict[str, float]:
        return {"accuracy": float((truth[order] == guesses).mean())}

    together, alone = (metrics_by_chance(metrics, each) for each in (clusters, np.arange(600)))
    assert together["accuracy"].deviation > 2.5 * alone["accuracy"].deviation
    assert metrics_by_chance(metrics, clusters // 10) == {}


def test_sections_without_data_are_left_out():
    shown = small()
    assert [section.key for section in sections(shown)] == ["leaderboard"]
    page = as_page(shown)
    assert re.findall(r'<section id="(\w+)"', page) == ["leaderboard"]
    assert "WHAT TO DO" not in as_text(shown)
    assert as_json(shown)["drift"] is None


def test_a_report_without_models():
    with pytest.raises(InputError, match="at least one model"):
        small(leaderboard=())


def test_a_regression():
    rows = largest_errors(np.asarray([1.0, 2.5]), np.asarray([4.0, 2.0]))
    shown = small(task="regress", metric="spearman", hardest=tuple(rows), texts=("one", "two"))
    assert [section.key for section in sections(shown)] == ["leaderboard", "hardest"]
    assert "true: 4   predicted: 1   error: 3\n    one" in as_text(shown)
    assert "a number per text" in as_page(shown)


def test_the_headline_says_how_far_to_trust_it():
    first, against, trust = headline(small(margin=Margin(0.03, 0.01, 0.05), held_out=500))
    assert first == "network: macro F1 0.830"
    assert against.startswith("+0.030 compared with the best linear model, TF-IDF (0.800)")
    assert "the difference is unlikely to be due to chance" in against
    assert "500 held-out rows is accurate to about ±0.020" in trust
    assert "slightly lower scores" in trust
    assert "may be due to chance" in headline(small(margin=Margin(0.03, -0.01, 0.07)))[1]
    assert "is partly lucky" in headline(small(margin=Margin(-0.03, -0.05, -0.01)))[1]
    worse = (LeaderboardRow("tfidf", "linear", 0.8), LeaderboardRow("blend", "blend", 0.79))
    advice = give_advice(small(leaderboard=worse, best="blend", margin=Margin(-0.01, -0.02, 0.01)))
    assert any(one.sentence.endswith("blend is not better.") for one in advice)
    assert "no baseline" in headline(small(leaderboard=(NETWORK,)))[1]
    assert "is a linear model" in headline(small(best="TF-IDF"))[1]
    # A blend may be preferred to a model that is better by chance.
    assert "slightly lower" not in headline(small(best="TF-IDF", held_out=500))[-1]


def test_the_report_says_who_can_read_the_network_of_the_folder():
    def lead(report: Report) -> str:
        return next(s for s in sections(report) if s.key == "leaderboard").lead

    assert "Transformers loads this model: network." in lead(small())
    own = lead(small(ordinary=False))
    assert "Only ownbert reads the head of the folder's network: network." in own


def test_the_first_line_says_what_is_wrong_with_the_network_of_the_folder():
    (first, *_) = headline(small(network="", left_out={"pretraining a network": "no time"}))
    assert first == "network: macro F1 0.830; the folder has no network (no time)"
    bad = replace(NETWORK, score=0.213)
    report = small(leaderboard=(LINEAR, bad), best="TF-IDF")
    (first, *_) = headline(report)
    assert first.startswith("TF-IDF: macro F1 0.800; the network of this folder")
    assert "only 0.213" in first
    assert "train" not in first
    first_advice = give_advice(report)[0]
    assert first_advice.sentence.startswith("Use ownbert predict, which predicts with TF-IDF")
    assert "More --minutes or more unlabelled texts may improve it" in first_advice.sentence
    assert first_advice.figure == "macro F1 0.213; TF-IDF 0.800"
    failures = {
        "not enough time": "Use more --minutes",
        "there was no time for one": "Use more --minutes",
        "CUDA out of memory. Tried to allocate 2.00 GiB": "Use a smaller --size",
        "the texts have no words": "Mend the cause of the failure",
    }
    for reason, start in failures.items():
        failed = small(network="", left_out={"pretraining a network": reason})
        (advice,) = (a for a in give_advice(failed) if "no network" in a.sentence)
        assert advice.sentence.startswith(start)
        assert advice.figure == reason or start == "Use more --minutes"
    close = small(leaderboard=(LINEAR, replace(NETWORK, score=0.79)), best="TF-IDF")
    assert headline(close)[0] == "TF-IDF: macro F1 0.800"


def test_lower_scores_can_be_better(monkeypatch: pytest.MonkeyPatch):
    board = (replace(LINEAR, score=0.3), replace(NETWORK, score=0.2))
    report = small(metric="log_loss", lower=True, leaderboard=board, best="")
    assert report.winner.name == "network"
    against = "0.100 better compared with the best linear model, TF-IDF (0.300)"
    assert headline(report)[1] == f"{against}."
    assert ">0.100 better<" in as_page(report)
    assert "+0.100" not in as_text(report)
    doubtful = replace(report, margin=Margin(0.1, -0.02, 0.2))
    assert headline(doubtful)[1].startswith(f"{against}; between 0.020 worse and 0.200 better in")
    figures = [one.figure for one in give_advice(doubtful)]
    assert "0.100 better, 0.020 worse to 0.200 better" in figures
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    page = as_page(doubtful)
    assert "相比 好 0.100；90% 的自助抽样在 差 0.020 与 好 0.200 之间" in page
    assert "better" not in page


def test_a_label_without_rows_has_no_scores():
    labels = (LabelScore("rare", 0.0, 0.0, 0.0, 0), LabelScore("weak", 0.2, 0.2, 0.2, 5))
    report = small(scores=Scores({"accuracy": 0.2}, labels), labels=("weak", "rare"))
    (section,) = (each for each in sections(report) if each.key == "classes")
    assert [row[:5] for row in section.rows] == [
        ("weak", "0.200", "0.200", "0.200", "5"),
        ("rare", "–", "–", "–", "0"),
    ]


def test_levels_of_labels_have_scores():
    scores = score_labels([0, 1, 2, 3], [1, 1, 2, 0], ["a/x", "a/y", "b/x", "b/y"])
    text = as_text(small(scores=scores, labels=tuple(s.label for s in scores.labels)))
    assert "LEVELS OF THE LABELS" in text
    assert re.search(r"level +labels +accuracy +macro F1\n +1 +2 +0\.750 +0\.733", text)


def test_a_small_share_is_not_zero():
    shares = (0, 0.00002, 0.0002, 0.00049, 0.05, 0.9998, 1)
    assert [*map(percent, shares)] == [
        *("0.0%", "0.002%", "0.02%", "0.05%", "5.0%", "99.98%", "100.0%")
    ]


def test_test_rows_that_were_learnt_from_are_said_at_once():
    tested = replace(NETWORK, test_score=1.0)
    report = small(leaderboard=(LINEAR, tested), test_rows=20, learnt_from_test=7)
    assert "contains 7 of the 20 test rows, so the test score says little" in headline(report)[2]
    few = small(leaderboard=(LINEAR, tested), test_rows=100, learnt_from_test=1)
    assert headline(few)[2].endswith("The training data contains 1 of the 100 test rows.")
    groups = small(leaderboard=(LINEAR, tested), test_rows=20, known_groups_in_test=7)
    assert "7 of the 20 test rows belong to groups of the training data, so" in headline(groups)[2]
    clean = small(leaderboard=(LINEAR, tested), test_rows=20)
    assert "not used for selection, it is 1.000" in headline(clean)[2]


def test_a_test_score_far_below_is_the_first_advice():
    """The report had good news only: well calibrated, more labels would hardly help."""
    best = replace(NETWORK, score=0.996, spread=0.003, test_score=0.572)
    calibrated = replace(made_report().calibration, error=0.01, by_chance=0.02, classes=())
    given = {"leaderboard": (LINEAR, best), "test_rows": 300, "held_out": 600}
    report = small(**given, calibration=calibrated, settings={"minutes": 1})
    first, *others = give_advice(report)
    assert first.kind == "do"
    assert "Expect the score of the test set" in first.sentence
    assert "(use --group), changes over time (use --time-column), or test" in first.sentence
    assert first.figure == "macro F1 0.996; test set 0.572"
    trust = headline(report)[2]
    assert "it is only 0.572: expect this on new texts" in trust
    assert "accurate to" not in trust
    (calibration,) = (one for one in others if "well calibrated" in one.sentence)
    assert calibration.kind == "note"
    assert calibration.sentence.endswith("held-out rows only, not to the test set.")
    used = {"group": "customer", "time_column": "day"}
    sentence = give_advice(replace(report, settings=used))[0].sentence
    assert sentence.endswith("Likely reasons: test rows of another kind.")
    # A difference that may be due to chance, and none.
    few = replace(report, test_rows=3, leaderboard=(LINEAR, replace(best, test_score=0.667)))
    better = replace(report, leaderboard=(LINEAR, replace(best, test_score=0.995)))
    for one in (few, better):
        assert kinds(one)["Probabilities are"] == "fine"
        assert "accurate to about" in headline(one)[2]
    worse = replace(best, score=0.2, spread=0.01, test_score=0.9)
    report = small(**given | {"leaderboard": (worse,)}, metric="log_loss", lower=True)
    assert "Expect the" in kinds(report)


def test_advice_follows_the_numbers(report: Report):
    found = kinds(report)
    assert found["Label more"] == found["The model"] == "do"
    assert found["Longer pretraining"] == "fine"
    order = [one.kind for one in give_advice(report)]
    assert order == sorted(order, key=["do", "note", "fine"].index)
    assert all(one.figure for one in give_advice(report))
    assert kinds(small(margin=Margin(0.03, -0.01, 0.07))) == {"The linear": "do"}
    assert kinds(small(margin=Margin(0.03, 0.01, 0.05))) == {}
    assert kinds(small(best="TF-IDF")) == {"Use the": "fine"}
    rare = small(labels=("a", "b", "c"), train_counts=(3, 50, 7), margin=Margin(0.03, 0.01, 0.05))
    (one,) = give_advice(rare)
    assert one.sentence == "Label more texts of a and c, which have fewer than 20 rows."
    assert one.figure == "3, 7 rows"
    assert report.calibration is not None
    calm = replace(report.calibration, error=0.01, by_chance=0.02, classes=())
    assert kinds(small(calibration=calm))["Probabilities are"] == "fine"


def test_a_perfect_score_cannot_rise(report: Report):
    rising = fit_learning_curve([(n, 0.9 - 0.6 * n**-0.35) for n in (200, 400, 800, 1600)])
    unknown = replace(rising, reason="the scores vary too much")
    for score, expected in ((0.9, ("do", "note")), (0.997, ("fine", "fine"))):
        rows = tuple(replace(r, score=score) for r in report.leaderboard)
        found = [
            give_advice(replace(report, leaderboard=rows, learning_curve=c, minutes_curve=None))
            for c in (rising, unknown)
        ]
        about = [a for each in found for a in each if re.search("ore (texts:|labels)", a.sentence)]
        assert tuple(a.kind for a in about) == expected
    assert "× the labels" in as_page(report)
    perfect = replace(report, leaderboard=(replace(report.winner, score=1.0),))
    assert "× the labels" not in as_page(perfect)
    lower = small(metric="mae", lower=True, learning_curve=unknown)
    assert "cannot be estimated" in " ".join(a.sentence for a in give_advice(lower))


def test_a_linear_model_that_was_selected_within_chance():
    rows = (
        LeaderboardRow("tfidf", "linear", 0.80, 0.02),
        LeaderboardRow("network", "network", 0.81, 0.02),
    )
    chosen = small(leaderboard=rows, best="tfidf", network="network")
    sentence = headline(chosen)[1]
    assert "network scored higher (0.810), but the difference may be due to chance" in sentence
    assert any("by more than chance" in a.sentence for a in give_advice(chosen))
    equal = replace(chosen, leaderboard=(rows[0], replace(rows[1], score=0.80)))
    assert headline(equal)[1].endswith("no other model scored higher.")
    assert any(a.sentence.endswith("is better here.") for a in give_advice(equal))


def test_a_margin_is_paired():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 400)
    wrong = rng.random(400) < 0.3
    best, baseline = np.where(wrong, 1 - targets, targets), targets.copy()
    baseline[:] = best
    baseline[np.flatnonzero(~wrong)[:12]] ^= 1  # the same mistakes and 12 more

    def gain(one: np.ndarray, other: np.ndarray, rows: np.ndarray) -> float:
        accuracy, others = ((x == targets)[rows].mean() for x in (one, other))
        return float(accuracy) - float(others)

    margin = bootstrap_margin(partial(gain, best, baseline), np.arange(len(targets)), 300)
    assert margin.mean == pytest.approx(0.03)
    assert 0.01 < margin.low < 0.03 < margin.high < 0.05
    same = bootstrap_margin(partial(gain, best, best), np.arange(len(targets)), 20)
    assert (same.mean, same.low, same.high) == (0, 0, 0)


def test_texts_are_cleaned():
    assert cleaned("a\n b\t\x00c\u202ed", 20) == "a b c d"
    assert cleaned("x" * 10_000, 10) == "x" * 9 + "…"
    assert cleaned("x" * 10, 10) == "x" * 10
    assert cleaned("half \ud83d", 20) == "half"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
@pytest.mark.parametrize("classes", [8, 150])
def test_a_browser_shows_the_page(report: Report, many: Report, tmp_path: Path, classes: int):
    shown = report if classes == 8 else many
    write_report(shown, tmp_path)
    page = tmp_path / "report.html"
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    # The script of the page has run, those of the texts have not.
    assert '<th class="name"><button>model</button></th>' in done.stdout
    (title,) = re.findall("<title>(.*?)</title>", done.stdout[:20_000], re.DOTALL)[:1]
    assert html.unescape(title) == headline(shown)[0]
    assert done.stdout.count("<script") == 1


def test_names_have_room_in_the_text(report: Report):
    """At 100 columns size and speed are left out before a name loses its end."""
    name = "distilled network"
    first = replace(report.leaderboard[0], name=name, spread=0.0, size=10**9)
    shown = replace(report, leaderboard=(first, *report.leaderboard[1:]))
    (line,) = (line for line in as_text(shown).splitlines() if line.startswith(name))
    assert f"{first.score:.3f}" in line
    assert "…" not in line


@pytest.mark.parametrize("spread", [0.0, 0.0001, None])
def test_no_interval_is_shown_where_there_is_none(report: Report, spread: float | None):
    rows = tuple(replace(row, spread=spread) for row in report.leaderboard)
    margin = replace(report.margin, low=0.0, high=0.0) if report.margin else None
    shown = replace(report, leaderboard=rows, margin=margin)
    for text in (as_text(shown), as_page(shown)):
        assert "±0.000" not in text
        assert "between +0.000 and +0.000" not in text
    assert "±" not in sections(shown)[0].columns


def test_a_temperature_that_does_not_help_is_not_recommended(report: Report):
    assert report.calibration is not None
    assert "error with the temperature" in as_text(report)
    worse = replace(report.calibration, helps=False)
    shown = replace(report, calibration=worse)
    assert "error with the temperature" not in as_text(shown)
    assert "none helps" in as_text(shown)
    assert "Dashed: with the temperature" in as_page(report)
    assert "Dashed: with the temperature" not in as_page(shown)


def test_scores_of_the_first_fold_are_compared_on_its_rows(tmp_path: Path):
    linear = replace(LINEAR, first_score=0.95)
    network = replace(NETWORK, rows=40, first_score=0.83)
    shown = replace(
        small(), leaderboard=(linear, network), network="network", best="TF-IDF", held_out=200
    )
    assert "only 0.830, far below a linear model (0.950)" in headline(shown)[0]
    assert headline(shown)[1].endswith("no other model scored higher.")
    assert "The column rows has the number of held-out rows behind a score." in as_text(shown)
    board = next(section for section in sections(shown) if section.key == "leaderboard")
    place = board.columns.index("rows")
    assert {row[0]: row[place] for row in board.rows} == {"TF-IDF": "200", "network": "40"}
    better = replace(shown, leaderboard=(linear, replace(network, first_score=0.99)))
    assert "network scored higher (0.990), but the difference may" in headline(better)[1]
    assert ";" not in headline(better)[0]
    write_fit_card(tmp_path, shown)
    card = (tmp_path / "README.md").read_text()
    assert "on 200 held-out rows, or on the number of them in the column `rows`" in card
    same = replace(shown, leaderboard=(LINEAR, NETWORK))
    assert "The column rows" not in as_text(same)


def test_a_network_far_below_the_best_model_is_named():
    probe = replace(NETWORK, name="linear on the frozen network", score=0.95)
    shown = small(leaderboard=(LINEAR, NETWORK, probe), best=probe.name)
    assert "the network of this folder has only 0.830 where the best" in headline(shown)[0]
    close = replace(shown, leaderboard=(LINEAR, NETWORK, replace(probe, score=0.87)))
    assert ";" not in headline(close)[0]
