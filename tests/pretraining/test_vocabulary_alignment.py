"""Starting from a model with another vocabulary: which vector goes to which token, what is copied
besides, and what is refused."""

import gzip
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert import InputError, prepare
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import load, save
from ownbert.config.encoder import EncoderConfig
from ownbert.corpus.store import Store
from ownbert.nn.model import Model
from ownbert.objectives.learner import Learner
from ownbert.pretraining.init_weights import new_learner
from ownbert.pretraining.pretrain_recipe import (
    PretrainData,
    PretrainModel,
    PretrainRecipe,
    PretrainTask,
)
from ownbert.pretraining.pretraining_run import Pretraining
from ownbert.pretraining.vocabulary_alignment import (
    MATCH_KINDS,
    AlignmentReport,
    TokenMatch,
    copy_checkpoint,
    init_config,
    match_vocabulary,
    read_counts,
)
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.optimizers import make_optimizer
from support.tiny import SPECIAL, change_config, change_weights, parameters
from support.tokenizer_folders import t5_folder

OLD = [
    *("[UNK]", "the", "[PAD]", "of", "cat", "[MASK]", "[CLS]", "run", "[SEP]", "##s", "##ing"),
    *("s", ".", "2005", "20", "##05", "ca", "##t", "dog"),
]
OLD_TOKENIZER = Tokenizer.wordpiece(OLD)
CONFIG = EncoderConfig(
    vocab_size=len(OLD) + 1,  # one row more than the tokenizer has tokens, as in some checkpoints
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=20,
    pad_token_id=2,
    hidden_act="gelu_new",
    layer_norm_eps=1e-6,
)
WORD = "encoder.embeddings.word.weight"


def made(folder: Path, *heads: str, seed: int = 0, tokenizer: Tokenizer = OLD_TOKENIZER, **changes):
    torch.manual_seed(seed)
    model = Model(replace(CONFIG, **changes), heads)
    for parameter in model.parameters():
        parameter.data.normal_()
    save(model, folder, tokenizer=tokenizer)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    made(folder, "mlm", "nsp")
    return folder


def recipe(*objectives: str, max_length: int = 8, dropout: float = 0.0) -> PretrainRecipe:
    return PretrainRecipe(
        data=PretrainData(max_length=max_length),
        model=PretrainModel(dropout=dropout),
        task=PretrainTask(objectives=objectives or ("mlm", "nsp")),
    )


def store_of(folder: Path, tokenizer: Tokenizer, lines: Sequence[str]) -> Store:
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    return prepare(folder / "corpus.txt", folder / "tokens", tokenizer=tokenizer, layout="line")


def started(
    folder: Path, store: Store, counts: Path | None = None, *objectives: str
) -> tuple[Learner, AlignmentReport]:
    asked, tokenizer = recipe(*objectives), store.tokenizer()
    learner = new_learner(asked, init_config(folder, tokenizer, asked), ())
    report = copy_checkpoint(learner.model, folder, tokenizer, store, counts_file=counts)
    return learner, report


def test_rows_are_those_of_the_old_vocabulary(tmp_path: Path, checkpoint: Path):
    tokenizer = Tokenizer.blank([*SPECIAL, "the", "cats", "qx", "."])
    store = store_of(tmp_path, tokenizer, ["the cats the .", "the qx . yy the cats"])
    learner, report = started(checkpoint, store)
    old, new = load(checkpoint).encoder.embeddings.word.weight, parameters(learner.model)[WORD]
    rows = dict(zip(tokenizer.vocabulary(), new, strict=True))
    assert torch.equal(rows["the"], old[OLD.index("the")])
    torch.testing.assert_close(rows["cats"], (old[OLD.index("cat")] + old[OLD.index("##s")]) / 2)
    for token in SPECIAL:
        assert torch.equal(rows[token], old[OLD.index(token)])
    assert report.tokens == dict(zip(MATCH_KINDS, (5, 2, 1, 0, 1), strict=True))
    assert report.shares == {
        "special": pytest.approx(0.1),
        "name": pytest.approx(0.6),
        "pieces": pytest.approx(0.2),
        "rank": 0,
        "new": pytest.approx(0.1),
    }
    text = str(report)
    assert "2 by name (60.0% of the corpus), 1 as the mean of pieces (20.0% of the corpus)" in text
    assert "by rank" not in text
    assert not report.hint


def test_a_vocabulary_with_fewer_special_tokens(tmp_path: Path):
    """T5's has neither [CLS] nor [MASK], and ends texts with what is [SEP] elsewhere."""
    pytest.importorskip("sentencepiece")
    other = Tokenizer.load(t5_folder(tmp_path / "t5"))
    made(tmp_path / "old", tokenizer=other, vocab_size=other.vocab_size, pad_token_id=0)
    tokenizer = Tokenizer.blank([*SPECIAL, "the", "qx"])
    learner, report = started(tmp_path / "old", store_of(tmp_path, tokenizer, ["the qx the"]))
    old = load(tmp_path / "old").encoder.embeddings.word.weight
    rows = dict(zip(tokenizer.vocabulary(), parameters(learner.model)[WORD], strict=True))
    for ours, theirs in (("[PAD]", "<pad>"), ("[UNK]", "<unk>"), ("[SEP]", "</s>")):
        assert torch.equal(rows[ours], old[other.id_of(theirs)])
    assert report.tokens["special"] == 3
    assert report.tokens["new"] >= 2
    # And the other way round.
    matched = match_vocabulary(other, tokenizer, np.zeros(other.vocab_size))
    assert matched.ids[other.sep_id] == (tokenizer.sep_id,)
    assert matched.kinds.count("special") == 3


def test_new_words_are_like_those_copied(tmp_path: Path):
    old = made(tmp_path / "old", hidden_size=16)
    with torch.no_grad():
        old.encoder.embeddings.word.weight[OLD.index("the")] = 7.0
        old.encoder.embeddings.word.weight[OLD.index("of")] = 9.0
    save(old, tmp_path / "old", tokenizer=OLD_TOKENIZER)
    words = [f"q{number}" for number in range(400)]
    store = store_of(tmp_path, Tokenizer.blank([*SPECIAL, "the", "of", *words]), ["the q1"])
    table = parameters(started(tmp_path / "old", store)[0].model)[WORD][7:]
    assert table.mean().item() == pytest.approx(8, abs=0.1)
    assert table.std().item() == pytest.approx(2**0.5, rel=0.05)
    again = parameters(started(tmp_path / "old", store)[0].model)[WORD][7:]
    assert torch.equal(table, again)


@settings(max_examples=6)
@given(st.integers(0, 10**6))
def test_a_vocabulary_in_another_order_gives_the_same_hidden_states(seed: int):
    rng = random.Random(seed)
    tokens = rng.sample(OLD, len(OLD))
    tokenizer = Tokenizer.wordpiece(tokens)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = made(folder / "old", seed=seed)
        store = store_of(folder, tokenizer, ["the cat runs . 2005 dogs"])
        learner, report = started(folder / "old", store, None, "mlm")
    assert report.tokens["name"] == len(OLD) - 5
    words = [rng.choice(OLD) for _ in range(12)]
    hidden = []
    for model, place in ((old, OLD), (learner.model.eval(), tokens)):
        ids = torch.tensor([place.index(word) for word in words]).numpy()
        with torch.no_grad():
            hidden.append(model(pack([Example(ids, 0 * ids)]), []).hidden)
    torch.testing.assert_close(hidden[1], hidden[0])


def test_encoder_pooler_and_heads_are_copied(tmp_path: Path, checkpoint: Path):
    store = store_of(tmp_path, Tokenizer.blank([*SPECIAL, "the", "cat"]), ["the cat"])
    learner, report = started(checkpoint, store)
    old, new = parameters(load(checkpoint)), parameters(learner.model)
    different = {WORD, "heads.mlm.decoder.bias"}
    assert set(report.copied) == new.keys() - different
    assert all(torch.equal(new[name], old[name]) for name in report.copied)
    assert report.new == report.unused == ()
    assert learner.model.config.hidden_act == "gelu_new"
    assert learner.model.config.layer_norm_eps == 1e-6


def test_what_a_checkpoint_lacks_starts_anew_and_what_is_not_needed_is_named(tmp_path: Path):
    made(tmp_path / "bare")
    store = store_of(tmp_path, Tokenizer.blank([*SPECIAL, "the", "cat"]), ["the cat"])
    _, report = started(tmp_path / "bare", store, None, "mlm")
    assert set(report.new) == {
        f"heads.mlm.{part}.{kind}" for part in ("dense", "norm") for kind in ("weight", "bias")
    }
    assert report.unused == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")
    assert "new: the mlm head; not used: bert.pooler.dense.bias" in str(report)
    _, report = started(tmp_path / "bare", store, None, "mlm", "nsp")
    assert not report.unused
    assert "new: the mlm head, the nsp head" in str(report)


def test_a_damaged_checkpoint_is_named(tmp_path: Path):
    made(tmp_path / "old")
    change_weights(tmp_path / "old", encoder__layer__0__output__dense__bias=...)
    store = store_of(tmp_path, Tokenizer.blank([*SPECIAL, "the", "cat"]), ["the cat"])
    with pytest.raises(
        InputError, match=r"model\.safetensors does not match its config\.json.*bias"
    ):
        started(tmp_path / "old", store)


def test_the_table_of_positions_keeps_its_length(checkpoint: Path):
    tokenizer = Tokenizer.blank([*SPECIAL, "the", "cat"])
    config = init_config(checkpoint, tokenizer, recipe(max_length=20, dropout=0.2))
    expected = replace(
        CONFIG,
        vocab_size=7,
        pad_token_id=0,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.2,
    )
    assert config == expected
    with pytest.raises(InputError, match=r"max_length is 21.*max_position_embeddings 20"):
        init_config(checkpoint, tokenizer, recipe(max_length=21))


def test_positions_without_a_table_may_be_longer(tmp_path: Path):
    made(tmp_path / "rotary", position_embedding_type="rotary")
    config = init_config(tmp_path / "rotary", OLD_TOKENIZER, recipe(max_length=30))
    assert (config.max_position_embeddings, config.position_embedding_type) == (30, "rotary")
    made(tmp_path / "relative", position_embedding_type="relative_key")  # a table of distances
    with pytest.raises(InputError, match="max_position_embeddings 20"):
        init_config(tmp_path / "relative", OLD_TOKENIZER, recipe(max_length=30))


@pytest.mark.parametrize(
    ("changes", "objectives", "message"),
    [
        ({"model_type": "roberta"}, (), "model_type is 'roberta'.*from 'bert' only"),
        ({"model_type": "gpt2"}, (), "model_type is 'gpt2'.*from 'bert' only"),
        ({"model_type": ..., "type_vocab_size": ...}, (), "model_type is 'None'.*from 'bert' only"),
        ({"is_decoder": True, "add_cross_attention": True}, (), "add_cross_attention is true"),
        ({"type_vocab_size": 1}, ("mlm", "sop"), "has sop, but .* has type_vocab_size 1"),
    ],
)
def test_other_structures_are_refused(
    tmp_path: Path, changes: dict, objectives: tuple[str, ...], message: str
):
    made(tmp_path)
    change_config(tmp_path, **changes)
    tokenizer = Tokenizer.blank([*SPECIAL, "the", "cat"])
    with pytest.raises(InputError, match=message):
        init_config(tmp_path, tokenizer, recipe(*objectives))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"no such folder: .*c; write a model on the hub"):
        init_config(tmp_path / "a" / "b" / "c", OLD_TOKENIZER, recipe())


def test_numbers_without_counts_start_anew_and_the_report_says_what_helps(
    tmp_path: Path, checkpoint: Path
):
    store = store_of(tmp_path, Tokenizer.blank([*SPECIAL, "20", "2005"]), ["20 2005 20"])
    _, report = started(checkpoint, store)
    assert report.tokens["new"] == 2
    assert "--init-counts" in str(report)
    counts = tmp_path / "counts.txt"
    counts.write_text("the 5\ncat 4\n")
    learner, report = started(checkpoint, store, counts)
    assert report.tokens["rank"] == 2
    assert report.shares["rank"] == 1
    assert "--init-counts" not in str(report)
    table, old = parameters(learner.model)[WORD], parameters(load(checkpoint))[WORD]
    assert torch.equal(table[5:], old[[OLD.index("the"), OLD.index("cat")]])


def test_the_result_is_pretrained_saved_and_read_by_transformers(
    topics: Path, tmp_path: Path, checkpoint: Path
):
    transformers = pytest.importorskip("transformers")
    asked = replace(
        recipe(max_length=16),
        data=PretrainData(tokens=str(topics / "tokens"), max_length=16, batch_tokens=256),
    )
    run = Pretraining(asked)
    config = init_config(checkpoint, run.tokenizer, asked)
    learner = new_learner(asked, config, run.phase_data[0].objectives)
    copy_checkpoint(learner.model, checkpoint, run.tokenizer, run.store)
    optimizer = make_optimizer(learner, run.recipe.optim)
    batch = run.phase_data[0].held_out_batches()[0]
    before = parameters(learner.model)[WORD].clone()
    losses = []
    for _ in range(2):
        total = sum(loss.total / loss.count for loss in learner(batch).values())
        losses.append(total.detach().item())
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[1] < losses[0]
    assert not torch.equal(parameters(learner.model)[WORD], before)
    folder = tmp_path / "saved"
    save(learner.model, folder, tokenizer=run.tokenizer)
    theirs = transformers.BertForPreTraining.from_pretrained(folder).eval()
    ids = torch.tensor([run.tokenizer.cls_id, 7, 9, run.tokenizer.sep_id])
    with torch.no_grad():
        logits = theirs(ids[None]).prediction_logits[0]
        example = Example(ids.numpy(), 0 * ids.numpy())
        ours = learner.model.eval()(pack([example]), ["mlm"]).logits["mlm"]
    torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)
    # A resumed run finds the structure in its own folder: that of the checkpoint may be gone.
    assert init_config(folder, run.tokenizer, asked) == config


def test_a_discriminator_starts_from_it_too(tmp_path: Path, checkpoint: Path):
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.blank([*SPECIAL, "the", "cat"])
    store = store_of(tmp_path, tokenizer, ["the cat"])
    asked = recipe("mlm", "rtd")
    learner = new_learner(asked, init_config(checkpoint, tokenizer, asked), ())
    report = copy_checkpoint(learner.model, checkpoint, tokenizer, store)
    assert "new: the discriminator head" in str(report)
    assert learner.generator is not None
    old = parameters(load(checkpoint))
    assert torch.equal(parameters(learner.generator)[WORD][5], old[WORD][OLD.index("the")])
    save(learner.model, tmp_path / "saved", tokenizer=tokenizer)
    assert transformers.ElectraForPreTraining.from_pretrained(tmp_path / "saved")


def matched(found: TokenMatch, tokenizer: Tokenizer, old: Tokenizer) -> dict[str, tuple]:
    """Ordinary token -> how it was found, and the old tokens."""
    rows = zip(tokenizer.vocabulary(), found.kinds, found.ids, strict=True)
    return {t: (way, *old.tokens(ids)) for t, way, ids in rows if way != "special"}


def match_tokens(tokens: Sequence[str], ranking=None, counts=None, old=OLD_TOKENIZER):
    tokenizer = Tokenizer.blank([*SPECIAL, *tokens])
    counts = torch.tensor([0] * 5 + list(counts or range(len(tokens), 0, -1))).numpy()
    return matched(match_vocabulary(tokenizer, old, counts, ranking), tokenizer, old)


def test_words_are_found_by_name_and_as_pieces():
    assert match_tokens(["the", "Cats", "running", "zebra", "s", "cat.", "[PAD]s"]) == {
        "the": ("name", "the"),
        "Cats": ("pieces", "cat", "##s"),  # the old tokenizer writes it in lower case
        "running": ("new",),
        "zebra": ("new",),
        "s": ("name", "s"),
        "cat.": ("pieces", "cat", "."),
        "[PAD]s": ("new",),
    }


def test_pieces_inside_words_are_not_words():
    tokenizer = Tokenizer.wordpiece([*SPECIAL, "##s", "s", "##the", "##sing", "##sx", "runs"])
    found = match_vocabulary(tokenizer, OLD_TOKENIZER, torch.ones(11).numpy())
    assert matched(found, tokenizer, OLD_TOKENIZER) == {
        "##s": ("name", "##s"),
        "s": ("name", "s"),
        "##the": ("new",),
        "##sing": ("pieces", "##s", "##ing"),
        "##sx": ("new",),
        "runs": ("pieces", "run", "##s"),
    }
    blank = Tokenizer.blank([*SPECIAL, "s", "the"])
    found = match_vocabulary(tokenizer, blank, torch.ones(11).numpy())
    assert matched(found, tokenizer, blank)["##s"] == ("new",)
    assert matched(found, tokenizer, blank)["s"] == ("name", "s")


def test_special_tokens_are_found_by_what_they_are_for():
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    other = dict(zip(names, ("<0>", "<1>", "<2>", "<3>", "[PAD]"), strict=True))
    backend = Tokenizer.blank(["[PAD]", "the", "<3>", *SPECIAL[1:], "<2>", "<1>", "<0>"]).backend
    tokenizer = Tokenizer(backend, special=other)
    found = match_vocabulary(tokenizer, OLD_TOKENIZER, torch.ones(tokenizer.vocab_size).numpy())
    for ours, theirs in zip(other.values(), SPECIAL, strict=True):
        assert found.kinds[tokenizer.id_of(ours)] == "special"
        assert found.ids[tokenizer.id_of(ours)] == (OLD.index(theirs),)


def test_numbers_are_matched_by_rank_and_not_as_years():
    ranking = {"cat": 5, "the": 90, "cats": 20, "[UNK]": 1000, "zzz": 40, "of": 50, "dog": 1}
    # In the order of the counts: 7, 2005, 20, 8, 9; the word zzz, third, cannot be written.
    found = match_tokens(["2005", "20", "7", "8", "9", "10"], ranking, [8, 7, 9, 6, 5, 0])
    assert found == {
        "7": ("rank", "the"),
        "2005": ("rank", "of"),
        "20": ("new",),
        "8": ("rank", "cat", "##s"),
        "9": ("rank", "cat"),
        "10": ("new",),  # is not in the corpus: it has no rank
    }


def test_what_is_not_a_number_beside_numbers_keeps_its_name():
    found = match_tokens([".", "7", "8", "the"], {".": 9, "the": 8, "of": 7, "cat": 6})
    assert found == {
        ".": ("name", "."),
        "7": ("rank", "of"),
        "8": ("rank", "cat"),
        "the": ("name", "the"),
    }


def test_with_counts_codes_are_matched_by_rank_too():
    assert match_tokens(["the", "qx"], {"of": 2, "cat": 1}) == {
        "the": ("rank", "of"),
        "qx": ("rank", "cat"),
    }


def test_numbers_are_names_among_numbers_only():
    assert match_tokens(["2005", "20", "7"]) == dict.fromkeys(("2005", "20", "7"), ("new",))
    numbers = Tokenizer.blank([*SPECIAL, "7", "20"])
    assert match_tokens(["2005", "20", "7"], old=numbers) == {
        "2005": ("new",),
        "20": ("name", "20"),
        "7": ("name", "7"),
    }


@pytest.mark.parametrize("pack_it", [False, True])
def test_counts_are_read(tmp_path: Path, pack_it: bool):
    content = b"the\t90\nof 50\n\nthe 3\n. \t7\r\n"
    path = tmp_path / "counts.txt"
    path.write_bytes(gzip.compress(content) if pack_it else content)
    assert read_counts(path) == {"the": 93, "of": 50, ".": 7}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1\nof\n", r"line 2: 'of' is not a token and a count"),
        (f"the {'9' * 400}\n", r"not a token and a count.* integer of at most 18 digits"),
        ("the 1\nof 2 3\n", "line 2"),
        ("the -1\n", "line 1"),
        ("the\t1.5\n", "line 1"),
        ("word\tcount\n", "line 1"),
        ("\t5\n", "line 1"),
        ("\n", "contains no counts"),
    ],
)
def test_damaged_counts_are_named(tmp_path: Path, content: str, message: str):
    path = tmp_path / "counts.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as error:
        read_counts(path)
    assert str(path) in str(error.value)
