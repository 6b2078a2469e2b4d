"""Words of translations: each rests on the source word that it stands for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert import Explainer, explain
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import save
from ownbert.exceptions import InputWarning
from ownbert.inspect.explain.methods import integrated_gradients, leave_one_out
from ownbert.text.tokenizer import Tokenizer
from ownbert.translation.transformer import make_model
from ownbert.translation.vocabulary import save_vocabularies
from support.cli import refusal, run_cli
from support.shared import made_once
from support.tiny import SPECIAL

ENGLISH = [f"w{i}" for i in range(8)]
# Upper case is the translation: word by word, in the same order.
TOKENIZER = Tokenizer.blank([*SPECIAL, *ENGLISH, *(word.upper() for word in ENGLISH)])
_STEPS = 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt to write each word in upper case."""
    return made_once(tmp_path_factory, "upper", _learn_upper_case) / "model"


def _learn_upper_case(folder: Path) -> None:
    torch.manual_seed(0)
    size = TOKENIZER.vocab_size
    model = make_model(size, size, N=1, d_model=32, d_ff=64, h=2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    # The smaller steps at the end make it right for every text, whatever the processor.
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, _STEPS)
    draw = np.random.default_rng(0)
    first = TOKENIZER.id_of("w0")
    assert first is not None
    start, end = TOKENIZER.cls_id, TOKENIZER.sep_id
    for _ in range(_STEPS):
        examples = []
        for _ in range(32):
            words = draw.integers(0, 8, 4)
            read = np.asarray([start, *(first + words), end])
            # Some words are hidden, and then nothing is to be known of their translations.
            hidden = (draw.random(6) < 0.1) & (read >= first)
            tags = np.where(hidden[1:], draw.integers(first + 8, first + 16, 5), read[1:] + 8)
            tags[-1] = end
            read[hidden] = TOKENIZER.unk_id
            source = Example(read, np.zeros_like(read))
            written = np.asarray([start, *tags[:-1]])
            examples.append(Example(written, np.zeros_like(written), tags=tags, source=source))
        batch = pack(examples)
        assert batch.tags is not None
        logits = model(batch).logits["generator"]
        torch.nn.functional.cross_entropy(logits, batch.tags).backward()
        optimizer.step()
        slower.step()
        optimizer.zero_grad()
    save(model, folder / "model")
    save_vocabularies(folder / "model", TOKENIZER, TOKENIZER)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("integrated_gradients", marks=pytest.mark.slow),
        "leave_one_out",
        "shapley",
    ],
)
def test_each_word_rests_on_the_one_that_it_translates(folder: Path, method: str):
    texts = ["w1 w5 w3 w0", "w7 w2 w6 w4"]
    found = explain(folder, texts, method=method)
    assert [each.target for each in found] == " ".join(texts).upper().split()
    right = [each.word(int(each.values.argmax())).upper() == each.target for each in found]
    assert np.mean(right) >= 0.85
    assert all([e.word(i) for i in range(4)] == e.texts[0].split() for e in found)
    assert all(0 < each.probability <= 1 for each in found)
    first = explain(folder, texts, method="gradient_x_input")  # a first guess, of the same words
    assert [each.words for each in first] == [each.words for each in found]


def test_values_add_up_to_what_the_words_do(folder: Path):
    explainer = Explainer(folder)
    (encoded,) = explainer.encoded(["w1 w5 w3"], "W5")
    ((target, (explained,)),) = explainer.explained_targets(encoded)
    assert target.name == "W5"
    none, whole = explained.values(
        [explained.without(range(3)), encoded.example.source.token_ids]  # pyright: ignore
    )
    found = integrated_gradients(explained)
    assert found.gap is not None
    assert found.values.sum() == pytest.approx(whole - none, rel=0.03)
    alone = explained.values([explained.without([1])])[0]
    assert leave_one_out(explained).values[1] == pytest.approx(whole - alone, rel=1e-4)
    assert target.shown == pytest.approx(np.exp(whole), rel=1e-4)


def test_on_the_command_line(folder: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = run_cli("explain", folder, "w1 w5 w3 w0", "--target", "W5", "--top", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "W5"
    assert "w5" in done.stdout.splitlines()[1]
    done = run_cli("explain", folder, "w1 w5 w3 w0", "--html", page, "--method", "leave_one_out")
    assert done.returncode == 0, done.stderr
    assert '"target": "W1"' in page.read_text()
    assert "the translation has no 'W7'; it is 'W1 W5 W3 W0'" in refusal(
        "explain", folder, "w1 w5 w3 w0", "--target", "W7"
    )
    assert "omit --layers and --heads" in refusal(
        "explain", folder, "w1", "--html", page, "--layers", "0"
    )
    assert "a word of a translation is explained by integrated_gradients" in refusal(
        "explain", folder, "w1", "--method", "attention_rollout"
    )


def test_an_empty_text_does_not_shift_the_rows(folder: Path):
    explainer = Explainer(folder)
    texts = ["", "w1 w2 w3 w4", "", "w5 w6 w7 w0"]
    with pytest.warns(InputWarning, match="texts without words, which have no explanation: 2"):
        found = explainer(texts)
    for row in (1, 3):
        own = [each.target for each in found if each.row == row]
        assert own == texts[row].upper().split()
    assert all(each.texts == (texts[each.row],) for each in found)
