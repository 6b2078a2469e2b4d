"""``Trainer`` of Transformers trains our classes as it trains its own."""

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", "4.57")
pytest.importorskip("accelerate")

import ownbert.hf as hf  # noqa: E402
from ownbert.families import FAMILIES  # noqa: E402
from support.padded_models import arguments, sizes  # noqa: E402
from support.tokenizer_folders import bert_folder  # noqa: E402

NO_DROPOUT = {
    "dim": {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "qa_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
    "d_kv": {"dropout_rate": 0.0, "classifier_dropout": 0.0},
    "d_inner": {"dropout": 0.0, "summary_last_dropout": 0.0},
    "hidden_size": {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
        "summary_last_dropout": 0.0,
    },
}
HEADS = [
    name
    for family in FAMILIES.values()
    for name, spec in family.architectures.items()
    if spec.heads and "patch_size" not in family.defaults
]
QUICK = ("BertForTokenClassification", "BertForMaskedLM")
# Those of two stacks, and of images.
T5 = {**sizes("t5"), **NO_DROPOUT["d_kv"], "decoder_start_token_id": 0}
APART: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "T5ForConditionalGeneration": (("text",), T5),
    "T5ForSequenceClassification": (("end",), T5),
    "T5ForQuestionAnswering": (("span",), T5),
    "MarianMTModel": (
        ("text",),
        {
            "vocab_size": 60,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "dropout": 0.0,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
    ),
    "ViTForImageClassification": (
        ("image",),
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "image_size": 8,
            "patch_size": 4,
        },
    ),
}
# In these of theirs the losses of several batches are added up, where their mean is meant.
ADDED_UP = [
    name
    for name in (*HEADS, *APART)
    if "kwargs" in arguments(getattr(transformers, name))
    and not hf.__getattr__(name).accepts_loss_kwargs
]
TWO = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}


def dataset(kinds: tuple[str, ...], count: int = 12) -> list[dict[str, Any]]:
    """Rows of one length with padding, the labels of a head, and a column that no model reads."""
    generator, rows = torch.Generator().manual_seed(0), []
    for number in range(count):
        ids = torch.randint(5, 60, (9,), generator=generator)
        mask = torch.ones_like(ids)
        mask[9 - number % 4 :] = 0
        if kinds == ("end",):
            ids[mask.sum() - 1] = 1  # where T5 looks for the class of a text
        ids = ids * mask
        at_tokens = torch.randint(2, (9,), generator=generator).masked_fill(mask == 0, -100)
        row = {"input_ids": ids, "attention_mask": mask, "number": number}
        if kinds == ("choice",):
            row |= {
                "input_ids": torch.stack((ids, ids.flip(0))),
                "attention_mask": mask.repeat(2, 1),
            }
        if kinds[0] in ("span", "beam_span"):
            row |= {"start_positions": 1, "end_positions": 2 + number % 3}
        elif kinds[0] in ("mlm", "tokens"):
            row["labels"] = at_tokens
        elif kinds == ("text",):
            row["labels"] = torch.where(mask == 0, -100, ids.flip(0).clamp(min=1))
        elif kinds == ("image",):
            images = torch.rand((3, 8, 8), generator=generator)
            row = {"pixel_values": images, "labels": number % 2}
        elif kinds == ("discriminator",):
            row["labels"] = at_tokens.clamp(min=0)
        else:
            row["labels"] = number % 2
        if len(kinds) == 2:
            row[TWO[kinds[1]]] = number % 2
        rows.append(row)
    return rows


def made(architecture: str, folder: Path) -> list[Any]:
    """Theirs and ours, of the same weights and without dropout, whose numbers differ."""
    kind = hf.__getattr__(architecture)
    if architecture in APART:
        keys = dict(APART[architecture][1])
    else:
        keys, known = sizes(kind.family.model_type), [*NO_DROPOUT]
        keys |= NO_DROPOUT[next((name for name in known if name in keys), known[-1])]
        if kind.family.architectures[architecture].decoder:
            keys["is_decoder"] = True
    torch.manual_seed(0)
    theirs = getattr(transformers, architecture)(
        getattr(transformers, kind.config_class.__name__)(**keys)
    )
    theirs.save_pretrained(folder)
    return [theirs, kind.from_pretrained(folder)]


class Exact(transformers.Trainer):
    """Keeps the losses of training; its log rounds them to four digits."""

    def training_step(self, *args: Any, **options: Any) -> Any:
        loss = super().training_step(*args, **options)
        self.exact = [*getattr(self, "exact", []), float(loss)]
        return loss


@pytest.fixture(scope="module", autouse=True)
def little_to_search() -> None:
    """accelerate looks for garbage after each training; what earlier tests have left is left out,
    because it takes a second each time."""
    gc.collect()
    gc.freeze()


def trainer(model: Any, rows: Any, folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1 if type(model).__name__ in ADDED_UP else 2,
        "max_steps": 3,
        "logging_steps": 1,
        # Adam turns the rounding of a gradient that is zero (of a key's bias) into a full step.
        "optim": "sgd",
        "learning_rate": 0.1,
        "weight_decay": 0.1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
    }
    more = {
        name: options.pop(name) for name in ("data_collator", "processing_class") if name in options
    }
    chosen = transformers.TrainingArguments(str(folder), **{**settings, **options})
    return Exact(model, chosen, train_dataset=rows, eval_dataset=rows, **more)


def norms(run: Any) -> list[float]:
    return [row["grad_norm"] for row in run.state.log_history if "grad_norm" in row]


def rounding(architecture: str) -> float:
    """MobileBERT enlarges what was rounded: most of its layers have no LayerNorm."""
    return 2e-4 if architecture.startswith("Mobile") else 1e-5


def train_both(architecture: str, folder: Path, **options: Any) -> list[Any]:
    if architecture in APART:
        kinds = APART[architecture][0]
    else:
        spec = hf.__getattr__(architecture).family.architectures[architecture]
        kinds = tuple(head.kind for head in spec.heads)
    rows, runs = dataset(kinds), []
    for number, model in enumerate(made(architecture, folder / "start")):
        run = trainer(model, rows, folder / str(number), **options)
        run.train()
        runs.append(run)
    most = rounding(architecture)
    assert runs[1].exact == pytest.approx(runs[0].exact, rel=most)
    assert norms(runs[1]) == pytest.approx(norms(runs[0]), rel=10 * most)
    # The bias of Marian's logits is a parameter here and a buffer there.
    assert runs[1].state.total_flos == pytest.approx(runs[0].state.total_flos, rel=0.01)
    return runs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", [*APART, *(name for name in HEADS if name not in QUICK)])
def test_every_head(architecture: str, tmp_path: Path):
    _train_evaluate_save_resume(architecture, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", QUICK)
def test_two_heads(architecture: str, tmp_path: Path):
    _train_evaluate_save_resume(architecture, tmp_path)


def _train_evaluate_save_resume(architecture: str, folder: Path) -> None:
    theirs, ours = train_both(architecture, folder)
    expected = theirs.evaluate()["eval_loss"]
    assert ours.evaluate()["eval_loss"] == pytest.approx(expected, rel=rounding(architecture))
    ours.save_model(str(folder / "saved"))
    again = type(theirs.model).from_pretrained(folder / "saved")
    rows = ours.eval_dataset
    found = trainer(again, rows, folder / "again").evaluate()["eval_loss"]
    assert found == pytest.approx(expected, rel=rounding(architecture))
    stopped, other = (made(architecture, folder / name)[1] for name in ("stopped", "other"))
    half = trainer(stopped, rows, folder / "half", max_steps=2, save_strategy="steps", save_steps=2)
    half.train()
    whole = trainer(other, rows, folder / "half", max_steps=3)
    whole.train(resume_from_checkpoint=str(folder / "half" / "checkpoint-2"))
    assert whole.exact[-1] == pytest.approx(ours.exact[-1], rel=rounding(architecture))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True},
        {"label_smoothing_factor": 0.1},
        {
            "max_grad_norm": 0.1,
            "optim": "adamw_torch",
            "learning_rate": 1e-3,
            "lr_scheduler_type": "cosine",
        },
        {"optim": "adafactor"},
        {"neftune_noise_alpha": 5.0},
    ],
    ids=str,
)
def test_settings(options: dict[str, Any], tmp_path: Path):
    train_both("BertForTokenClassification", tmp_path, **options)


@pytest.mark.filterwarnings("ignore")
def test_collators(tmp_path: Path):
    tokenizer = hf.BertTokenizer.from_pretrained(bert_folder(tmp_path / "tokenizer"))
    texts = ["the lazy dog", "fox jumps over the lazy dog", "dog", "a fox"]
    found = []
    for collator in (
        transformers.DataCollatorWithPadding(tokenizer),
        transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=0),
    ):
        mlm = isinstance(collator, transformers.DataCollatorForLanguageModeling)
        kind = hf.BertForMaskedLM if mlm else hf.BertForSequenceClassification
        labels = {} if mlm else {"label": 1}
        rows = [{**tokenizer(text), **labels} for text in texts]
        model = kind(hf.BertConfig(**{**sizes("bert"), "vocab_size": len(tokenizer)}))
        options = {"data_collator": collator, "processing_class": tokenizer}
        run = trainer(model, rows, tmp_path / kind.__name__, **options)
        run.train()
        found.append(run.evaluate()["eval_loss"])
        run.save_model()
        assert type(hf.AutoTokenizer.from_pretrained(tmp_path / kind.__name__)) is type(tokenizer)
    assert all(0 < loss < 10 for loss in found)


@pytest.mark.filterwarnings("ignore")
def test_collators_give_the_same_batches(tmp_path: Path):
    folder, found = bert_folder(tmp_path), []
    for kind in (transformers.BertTokenizerFast, hf.BertTokenizer):
        tokenizer = kind.from_pretrained(folder)
        rows = [dict(tokenizer(text)) for text in ("the lazy dog", "a fox jumps over", "dog")]
        labelled = [{**row, "labels": row["input_ids"][1:]} for row in rows]
        even = [{"input_ids": row["input_ids"][: len(row["input_ids"]) // 2 * 2]} for row in rows]
        torch.manual_seed(0)
        random.seed(0)
        batches = [
            transformers.DataCollatorForWholeWordMask(tokenizer, mlm_probability=0.4)(rows),
            transformers.DataCollatorForPermutationLanguageModeling(tokenizer)(even),
            transformers.DataCollatorForTokenClassification(tokenizer)(labelled),
            transformers.DataCollatorForSeq2Seq(tokenizer)(labelled),
        ]
        found.append([{name: tensor.tolist() for name, tensor in b.items()} for b in batches])
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore")
def test_memories_are_not_predictions(tmp_path: Path):
    rows = dataset(("classification",), 4)
    theirs, ours = (
        trainer(model, rows, tmp_path).predict(rows).predictions  # pyright: ignore
        for model in made("XLNetForSequenceClassification", tmp_path / "start")
    )
    assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["T5ForConditionalGeneration", "MarianMTModel"])
def test_texts_are_written_in_evaluation(architecture: str, tmp_path: Path):
    found = []
    rows = dataset(("text",))
    for model in made(architecture, tmp_path / "start"):
        model.generation_config.max_length = 7
        settings = transformers.Seq2SeqTrainingArguments(
            str(tmp_path), predict_with_generate=True, use_cpu=True, report_to=[], disable_tqdm=True
        )
        found.append(transformers.Seq2SeqTrainer(model, settings).predict(rows))
    theirs, ours = found
    assert ours.predictions.tolist() == theirs.predictions.tolist()
    assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], rel=1e-5)
