"""A trained folder at work: whatever the company, in order, by the command."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest

import ownbert
from ownbert import checkpoint
from ownbert.cli.translate_commands import TranslateCommand
from ownbert.exceptions import InputError
from ownbert.translation.decode import Translator
from support.cli import run_cli
from support.sequences import files, rows


def texts() -> list[str]:
    return [" ".join(row) for row in rows(40, seed=5)]


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_company_and_cache_change_nothing(folder: Path, beams: int):
    together = list(Translator(folder, beams=beams)(texts()))
    assert len(set(together)) > 20
    one = Translator(folder, beams=beams, batch_tokens=1)
    assert list(one(texts())) == together
    assert list(Translator(folder, beams=beams, cached=False)(texts())) == together


def test_half_precision_says_much_the_same(folder: Path):
    whole, half = (list(Translator(folder, precision=p)(texts())) for p in ("float32", "bfloat16"))
    assert sum(a == b for a, b in zip(whole, half, strict=True)) > 30


def test_order_is_kept_and_blank_texts_stay_blank(folder: Path):
    given = texts()
    whole = list(Translator(folder)(given))
    mixed = list(Translator(folder)(["", *given[::-1], "  "]))
    assert mixed == ["", *whole[::-1], ""]


def test_max_length(folder: Path):
    written = Translator(folder, max_length=2)(texts())
    assert max(len(text.split()) for text in written) <= 2
    with pytest.raises(InputError, match="max_length is 0"):
        Translator(folder, max_length=0)
    with pytest.raises(InputError, match="beams is 0"):
        Translator(folder, beams=0)
    for penalty in (400, float("nan")):
        with pytest.raises(InputError, match="length_penalty is"):
            Translator(folder, length_penalty=penalty)
    with pytest.warns(match="length_penalty has no effect with beams=1, which makes only one"):
        Translator(folder, beams=1, length_penalty=2)
    with pytest.raises(InputError, match="texts is one string"):
        list(Translator(folder)("10 11"))


def run(*arguments: str, given: str = "") -> CompletedProcess[str]:
    return run_cli("translate", *arguments, stdin=given)


def test_the_command(folder: Path, tmp_path: Path):
    given = texts()
    expected = list(Translator(folder)(given))
    source, output = tmp_path / "in.txt", tmp_path / "new" / "out.txt"
    source.write_text("".join(f"{text}\n" for text in given))
    done = run(str(folder), "--input", str(source), "-o", str(output))
    assert (done.returncode, done.stdout) == (0, "")
    assert output.read_text().splitlines() == expected
    done = run(str(folder), "--input", "-", given="\n".join(given[:3]))
    assert done.stdout.splitlines() == expected[:3]


def test_the_scores(folder: Path, tmp_path: Path):
    pytest.importorskip("sacrebleu")
    pairs = files(tmp_path, rows(30, seed=6), list, "test")
    done = run("score", str(folder), "--source", pairs["source"], "--target", pairs["target"])
    lines = done.stdout.splitlines()
    assert lines[0] == "30 pairs"
    assert lines[1].startswith("BLEU ")
    assert "case:mixed" in lines[1]
    assert "tok:13a" in lines[1]
    assert "case:lc" in lines[2]
    from ownbert.translation.bleu import bleu

    truth = Path(pairs["target"]).read_text().splitlines()
    assert bleu(truth, truth).score == pytest.approx(100)
    for text, cut in (
        ("一个人在路上", "zh"),
        ("ひとりの人が道にいる", "char"),
        ("คนหนึ่งอยู่บนถนน", "char"),
        ("한 사람이 길에 있다", "13a"),
        ("12 34 56 78", "13a"),
    ):
        found = bleu([text], [text])
        assert f"tok:{cut}|" in found.signature
        assert found.score == pytest.approx(100)


def test_mistakes(folder: Path, tmp_path: Path):
    source = tmp_path / "in.txt"
    source.write_text("10 11\n")
    for given, said in (
        ({"folder": tmp_path / "none", "texts": ["10"]}, "no such folder"),
        ({"texts": ["10"], "data": source}, "both given"),
        ({"data": source, "output": source}, "is read by this command"),
        ({"texts": ["10"], "output": folder / "config.json"}, "is read by this command"),
        ({"data": source, "resume": True}, "resume=True continues an output file"),
        ({"texts": ["10"], "output": tmp_path / "o", "resume": True}, "only an output file can"),
        ({"data": source, "output": tmp_path}, "it is a folder"),
    ):
        with pytest.raises(InputError, match=said):
            TranslateCommand(**({"folder": folder} | given)).run()
    done = run("score", str(folder))
    assert done.returncode == 2
    assert done.stderr.startswith("error: --source and --target are needed")
    assert source.read_text() == "10 11\n"


def test_other_commands_name_this_one(folder: Path):
    for other in (ownbert.describe, checkpoint.load, ownbert.fill):
        with pytest.raises(
            InputError, match="marian model has an encoder and a decoder; use it with"
        ):
            other(folder, **({"texts": ["10 [MASK]"]} if other is ownbert.fill else {}))


def test_a_folder_of_another_kind(tmp_path: Path):
    from support.tiny import made

    made(tmp_path / "bert", "mlm")
    with pytest.raises(InputError, match="contains a bert model; an encoder-decoder"):
        Translator(tmp_path / "bert")
