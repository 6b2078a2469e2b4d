"""What newcomers get wrong: each mistake is one clear line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ownbert
import ownbert.hf as hf
from ownbert.exceptions import InputError
from support.tiny import TOKENIZER

IDS = torch.full((3, 5), 7)
LABELS = torch.tensor([0, 1, 2])


def made(name: str, **changes: Any) -> Any:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = hf.__getattr__(name).config_class(
        **{**sizes, "intermediate_size": 8, "max_position_embeddings": 12, **changes}
    )
    return hf.__getattr__(name)(config).eval()


@pytest.fixture(scope="module")
def bert() -> Any:
    return made("BertModel")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_ids": [[1, 2]]}, r"input_ids is a list; it must be a tensor"),
        ({"input_ids": "hello"}, "input_ids is text; a tokenizer makes tensors"),
        ({"input_ids": ["a", "b"]}, "input_ids is text"),
        ({"input_ids": {"input_ids": IDS}}, r"pass its values by name: model\(\*\*inputs\)"),
        (
            {"input_ids": IDS.float()},
            "input_ids contains torch.float32; it must contain whole numbers",
        ),
        (
            {"input_ids": IDS + 13},
            r"input_ids contains 20; there are 20 rows of the table, 0\.\.19",
        ),
        ({"input_ids": IDS - 8}, "input_ids contains -1"),
        ({"input_ids": IDS[:, :0]}, "a batch needs at least one text"),
        ({"input_ids": IDS, "attention_mask": [[1] * 5] * 3}, "attention_mask is a list"),
        ({"input_ids": IDS, "token_type_ids": IDS}, "token_type_ids contains 7; there are 2"),
        ({"input_ids": IDS, "token_type_ids": IDS[:, :2]}, r"token_type_ids has shape \(3, 2\)"),
        ({"input_ids": IDS, "position_ids": IDS + 5}, "position_ids contains 12; there are 12"),
        ({"input_ids": IDS, "head_mask": [1, 0]}, "head_mask is a list"),
        ({"inputs_embeds": torch.rand(3, 5, 7)}, r"inputs_embeds has shape \(3, 5, 7\)"),
        ({"input_ids": IDS, "atention_mask": IDS}, "atention_mask'; did you mean attention_mask"),
        ({"input_ids": IDS, "labels": LABELS}, "BertModel.forward has no argument 'labels'"),
        ({"input_ids": IDS, "past_key_values": ()}, "past_key_values needs a model with is_dec"),
    ],
)
def test_inputs(bert: Any, given: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        bert(**given)


@pytest.mark.parametrize(
    ("name", "problem", "labels", "message"),
    [
        (
            "Sequence",
            None,
            torch.tensor([0, 1, 3]),
            r"labels contains 3; there are 3 classes, 0\.\.2",
        ),
        ("Sequence", None, LABELS[:2], r"labels has shape \(2,\); it must be \(3,\)"),
        ("Sequence", None, LABELS.float(), "for multi_label_classification it must be"),
        ("Sequence", "regression", torch.rand(3), r"for regression it must be \(3, 3\)"),
        ("Token", None, LABELS, r"labels has shape \(3,\); it must be \(3, 5\)"),
        ("Token", None, IDS, "labels contains 7; there are 3 classes"),
        ("Token", None, IDS.float(), "labels contains torch.float32"),
    ],
)
def test_labels(name: str, problem: str | None, labels: torch.Tensor, message: str):
    model = made(f"BertFor{name}Classification", num_labels=3, problem_type=problem)
    with pytest.raises(InputError, match=message):
        model(IDS, labels=labels)


def test_whole_numbers_do_for_targets_that_are_fractions():
    for problem in ("regression", "multi_label_classification"):
        model = made("BertForSequenceClassification", num_labels=2, problem_type=problem)
        whole = torch.tensor([[0, 1], [1, 1], [0, 0]])
        loss = model(IDS, labels=whole).loss
        torch.testing.assert_close(loss, model(IDS, labels=whole.float()).loss)
        loss.backward()


def test_decoders():
    model = made("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    wide, encoded = torch.rand(3, 4, 9), torch.rand(3, 4, 8)
    past = model(IDS).past_key_values
    for given, message in [
        ({"encoder_hidden_states": wide}, r"encoder_hidden_states has shape \(3, 4, 9\)"),
        (
            {"encoder_hidden_states": encoded, "encoder_attention_mask": torch.ones(3, 3)},
            r"encoder_attention_mask has shape \(3, 3\)",
        ),
        ({"past_key_values": (1, 2)}, "past_key_values must be those returned by an earlier call"),
    ]:
        with pytest.raises(InputError, match=message):
            model(IDS, **given)
    with pytest.raises(InputError, match="past_key_values are of 3 texts, the input has 2"):
        model(IDS[:2, :1], past_key_values=past)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: hf.BertConfig(id2label=["a", "b"]), "must name the labels"),
        (lambda b: hf.BertConfig(id2label={1: "a", 2: "b"}), "must name the labels"),
        (lambda b: hf.BertConfig(problem_type="reg"), "problem_type 'reg' is not known"),
        (lambda b: hf.BertConfig(dtype="flaot16"), "dtype 'flaot16' is not known"),
        (lambda b: hf.BertConfig(30, vocab_size=30), "vocab_size is given twice"),
        (lambda b: hf.BertModel(hf.RobertaConfig()), "takes a BertConfig, not a RobertaConfig"),
        (lambda b: hf.BertModel(b.config, num_labls=3), "'num_labls'; did you mean num_labels"),
        (lambda b: hf.BertModel.from_pretrained(None), "from_pretrained needs a folder"),
        (lambda b: b.prune_heads([0]), "prune_heads needs the heads of each layer"),
        (lambda b: b.resize_token_embeddings("9"), "needs a whole number, not '9'"),
        (lambda b: b.resize_token_embeddings(9, 1.5), "needs a whole number, not 1.5"),
        (lambda b: b.save_pretrained("x", push_to_hub=True), "push_to_hub is not supported"),
        (lambda b: setattr(b.encoder, "layer", []), "bert.encoder.layer cannot be replaced"),
        (lambda b: setattr(b, "pooler", torch.nn.Identity()), "bert.pooler cannot be replaced"),
        (lambda b: setattr(b, "encoder", torch.nn.Identity()), "bert.encoder cannot be replaced"),
        (lambda b: b.encoder(IDS), "bert.encoder cannot be called alone"),
    ],
)
def test_calls(bert: Any, call: Callable[[Any], Any], message: str):
    with pytest.raises(InputError, match=message):
        call(bert)


def test_folders(bert: Any, tmp_path):
    bert.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    for kind, options, message in [
        (hf.BertForSequenceClassification, {"num_lables": 3}, "did you mean num_labels"),
        (
            hf.BertForSequenceClassification,
            {"num_labels": 3, "id2label": {0: "a", 1: "b"}},
            "num_labels is 3, but id2label has 2 labels",
        ),
        (hf.BertModel, {"load_in_8bit": True}, "does not support load_in_8bit"),
        (hf.BertModel, {"variant": "fp16"}, "does not support variant; it reads model.safetensors"),
        (hf.BertModel, {"subfolder": 3}, "subfolder is 3; it must be the name of a folder"),
        (hf.BertModel, {"state_dict": [1]}, "state_dict is a list; it must be a dict of tensors"),
        (hf.BertModel, {"torch_dtype": "int8"}, "dtype 'int8' is not known"),
        (hf.RobertaModel, {}, "the config is of a bert model"),
        (
            hf.RobertaModel,
            {"config": made("RobertaModel").config},
            "contains a bert model; RobertaModel reads",
        ),
        (
            hf.BertModel,
            {"attn_implementation": "zzz"},
            "'zzz' is not known; use one of eager",
        ),
        (hf.BertConfig, {"attn_implementation": {"": "zzz"}}, "'zzz' is not known; use one of eag"),
        (
            hf.BertTokenizer,
            {"do_lower_case": "x"},
            "do_lower_case is 'x'; it must be true",
        ),
        (hf.AutoTokenizer, {"model_max_length": "9"}, "model_max_length is '9'; it must be a fin"),
        (hf.BertModel, {"vocab_size": 21}, "ignore_mismatched_sizes=True reinitialises them"),
    ]:
        with pytest.raises(InputError, match=message):
            kind.from_pretrained(tmp_path, **options)
    hf.BertModel.from_pretrained(tmp_path, attn_implementation="sdpa")


def test_positions_and_files(bert: Any, tmp_path: Path):
    bert.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    for kind in (hf.BertModel, hf.BertForMaskedLM, hf.AutoModelForMaskedLM):
        with pytest.raises(InputError, match="only the folder may be given by position"):
            kind.from_pretrained(tmp_path, bert.config)
    with pytest.raises(InputError, match="only the folder may be given by position"):
        hf.BertForMaskedLM.from_pretrained(tmp_path, False)
    assert hf.BertModel.from_pretrained(tmp_path, False).pooler is None
    path = tmp_path / "config.json"
    for load in (
        *(hf.BertModel.from_pretrained, hf.AutoModelForMaskedLM.from_pretrained, ownbert.load),
        *(hf.BertTokenizer.from_pretrained, hf.AutoTokenizer.from_pretrained, ownbert.Predictor),
    ):
        with pytest.raises(InputError, match=r"config.json is a file; give the folder "):
            load(path)
    for kind in (hf.BertConfig, hf.AutoConfig):
        assert kind.from_pretrained(path).hidden_size == bert.config.hidden_size
    assert hf.AutoModel.from_pretrained(tmp_path, config=path).config.vocab_size == 20
