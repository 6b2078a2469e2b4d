"""What newcomers get wrong: each mistake is one clear line."""

import re
from collections.abc import Callable
from pathlib import Path
from types import new_class
from typing import Any

import pytest
import torch
import transformers

import ownbert
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from support.padded_models import sizes
from support.tiny import TOKENIZER

IDS = torch.full((3, 5), 7)
LABELS = torch.tensor([0, 1, 2])


def made(name: str, **changes: Any) -> Model:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = ownbert.BertConfig(
        **{**sizes, "intermediate_size": 8, "max_position_embeddings": 12, **changes}
    )
    return getattr(ownbert, name)(config).eval()


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
        ({"input_ids": IDS, "labels": LABELS}, "BertModel has no argument 'labels'"),
        ({"input_ids": IDS, "past_key_values": ()}, "past_key_values needs a model with is_dec"),
        ({"input_ids": IDS, "encoder_hidden_states": IDS[..., None]}, "needs a model with is_deco"),
        ({"input_ids": IDS, "next_sentence_label": LABELS}, "no argument 'next_sentence_label'"),
        (
            {"input_ids": IDS, "attention_mask": IDS * -1e4},
            "must be 1 for tokens and 0 for padding",
        ),
        ({"input_ids": IDS.to("meta")}, r"input_ids is on meta, the model on cpu; move it there"),
        ({"input_ids": IDS, "output_hidden_states": "no"}, "'no'; it must be true or false"),
        (
            {"input_ids": IDS, "return_dict": IDS},
            "return_dict is tensor.*; it must be true or false",
        ),
        ({"input_ids": IDS, "output_attentions": 0.5}, "output_attentions is 0.5; it must be true"),
        (
            {"input_ids": IDS, "output_attentions": [0.5]},
            r"requests layer 0.5; the layers are 0\.\.0",
        ),
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


def test_one_of_two_kinds_of_labels():
    for name, given, message in (
        ("BertForPreTraining", {"labels": IDS}, "give both labels and next_sentence_label"),
        ("BertForQuestionAnswering", {"start_positions": LABELS}, "give both start_positions and"),
        ("BertForMultipleChoice", {"attention_mask": IDS}, r"attention_mask has shape \(3, 5\)"),
    ):
        ids = IDS[:, None].repeat(1, 2, 1) if "Choice" in name else IDS
        with pytest.raises(InputError, match=message):
            made(name)(ids, **given)


def test_embeddings_and_ids_of_other_dtypes(bert: Any):
    embeds = torch.rand(3, 5, 8)
    expected = bert(inputs_embeds=embeds).last_hidden_state
    torch.testing.assert_close(bert(inputs_embeds=embeds.double()).last_hidden_state, expected)
    xlnet = ownbert.XLNetModel(ownbert.XLNetConfig(vocab_size=20, d_model=8, n_layer=1, n_head=2))
    found, expected = (xlnet.eval()(ids).last_hidden_state for ids in (IDS.int(), IDS))
    torch.testing.assert_close(found, expected)


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


def other_config() -> Any:
    return transformers.RobertaConfig(hidden_size=8, num_attention_heads=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: new_class("Mine", (ownbert.BertModel,)), "is no class to derive from: derive"),
        (lambda b: b(IDS, input_ids=IDS), "BertModel: input_ids is given twice"),
        (lambda b: b(*[None] * 20), "BertModel has 13 arguments, not 20"),
        (lambda b: ownbert.BertConfig(id2label=["a", "b"]), "must name the labels"),
        (lambda b: ownbert.BertConfig(id2label={1: "a", 2: "b"}), "must name the labels"),
        (lambda b: ownbert.BertConfig(num_labels=0), "num_labels is 0; it must be"),
        (lambda b: ownbert.BertConfig(num_labels=3, id2label={0: "a"}), "but id2label has 1 label"),
        (lambda b: ownbert.BertConfig(hidden_size=7), "hidden_size"),
        (lambda b: ownbert.BertConfig(hiden_size=7), "did you mean hidden_size"),
        (lambda b: ownbert.BertConfig(problem_type="x"), "problem_type 'x' is not known"),
        (lambda b: ownbert.BertConfig(output_attentions="x"), "output_attentions is 'x'; it must"),
        (lambda b: ownbert.BertConfig(id2label={0: "a", 1: "a"}), "id2label names a label twice"),
        (
            lambda b: ownbert.BertConfig(id2label={0: "a", 1: "b"}, label2id={"a": 1, "b": 0}),
            "label2id does not match it",
        ),
        (lambda b: ownbert.BertConfig(label2id=5), "must name the labels"),
        (lambda b: ownbert.BertModel(), "takes a BertConfig, not a NoneType"),
        (lambda b: ownbert.save("folder", b), "save needs a model of OwnBERT, not a str"),
        (lambda b: ownbert.save(b, "x", tokenizer="y"), "save needs a tokenizer of OwnBERT"),
        (lambda b: b.save_pretrained(5), "save_pretrained needs a folder, not 5"),
        (lambda b: ownbert.load(5), "a model folder is needed, not 5"),
        (lambda b: ownbert.load("x", heads="mlm"), "heads is 'mlm'; it must be a list"),
        (lambda b: ownbert.load("x", labels=3), "labels is 3; it must be a list"),
        (lambda b: b.prune_heads({0: 1}), "it must map layers to the numbers of heads"),
        (lambda b: b.keep_layers("1"), "'1' layers cannot be kept"),
        (lambda b: b.set_words(torch.ones(2, 8)), "needs a torch.nn.Embedding, not a Tensor"),
        (lambda b: ownbert.BertModel(ownbert.RobertaConfig()), "takes a BertConfig, not a Config"),
        (lambda b: ownbert.BertModel(other_config()), "takes a BertConfig, not a RobertaConfig"),
        (lambda b: ownbert.BertModel("folder"), r"for a folder: BertModel.from_pretrained"),
        (lambda b: ownbert.BertModel.from_pretrained(None), "from_pretrained needs a folder"),
        (lambda b: Model(b.config)(IDS), "reads a packed Batch; for padded tensors, load it"),
        (lambda b: Model(b.config).save_pretrained("x"), r"with ownbert.save\(model, folder\)"),
    ],
)
def test_calls(bert: Any, call: Callable[[Any], Any], message: str):
    with pytest.raises(InputError, match=message):
        call(bert)


def test_folders(bert: Any, tmp_path: Path):
    bert.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    for kind, options, message in [
        (ownbert.BertForSequenceClassification, {"num_lables": 3}, "did you mean num_labels"),
        (
            ownbert.BertForSequenceClassification,
            {"num_labels": 3, "id2label": {0: "a", 1: "b"}},
            "num_labels is 3, but id2label has 2 labels",
        ),
        (
            ownbert.BertModel,
            {"load_in_8bit": True},
            "from_pretrained has no argument 'load_in_8bit'",
        ),
        (ownbert.BertModel, {"subfolder": 3}, "subfolder is 3; it must be the name of a folder"),
        (ownbert.BertModel, {"torch_dtype": "int8"}, "dtype 'int8' is not known"),
        (ownbert.BertModel, {"dtype": ["float32"]}, r"dtype \['float32'\] is not known"),
        (ownbert.RobertaModel, {}, "contains a bert model; RobertaModel reads roberta"),
        (ownbert.BertModel, {"vocab_size": 21}, r"shape \(20, 8\), expected \(21, 8\)"),
        (ownbert.BertTokenizer, {"do_lower_case": "x"}, "do_lower_case is 'x'; it must be true"),
    ]:
        with pytest.raises(InputError, match=message):
            kind.from_pretrained(tmp_path, **options)
    for load in (
        *(ownbert.BertModel.from_pretrained, ownbert.BertConfig.from_pretrained, ownbert.load),
        *(ownbert.BertTokenizer.from_pretrained, ownbert.Predictor),
    ):
        with pytest.raises(InputError, match=r"config.json is a file; give the folder "):
            load(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("model", "ownbert.load returns the model itself"),
        ("classifier", r'model.heads\["classification"\]'),
        ("bert", "model.encoder.blocks"),
        ("resize_token_embeddings", r"model.resize\(vocab_size\)"),
        ("generate", r"ownbert.speed_up\(model\)"),
        ("push_to_hub", "ownbert push"),
        ("gradient_checkpointing_disable", r"gradient_checkpointing_enable\(False\)"),
        ("nix", "'Model' object has no attribute 'nix'"),
    ],
)
def test_names_that_other_models_have(bert: Any, name: str, instead: str):
    with pytest.raises(AttributeError, match=instead):
        getattr(bert, name)
    with pytest.raises(AttributeError, match=r"no 'num_labels': use model.labels"):
        _ = bert.config.num_labels


def test_the_former_folder_names_its_replacement():
    with pytest.raises(AttributeError, match=r"no attribute 'hf': use ownbert\.BertModel"):
        _ = ownbert.hf
    with pytest.raises(ImportError, match=r"ownbert.hf is gone: .*ownbert\.BertModel") as caught:
        exec("from ownbert.hf import BertModel")
    assert "\n" not in str(caught.value)


BATCH = torch.ones(1, 2)
OF_FAMILIES = [
    ("DebertaV2ForMaskedLM", {"head_mask": torch.ones(4)}, "has no argument 'head_mask'"),
    ("DebertaV2Config", {"is_decoder": True}, "is_decoder is True; it must be False"),
    ("DebertaV2Config", {"tie_word_embeddings": False}, "is False; it must be True"),
    ("DebertaV2Config", {"pooler_hidden_size": 7}, "pooler_hidden_size is 7; it must be 1536"),
    ("DebertaV2Config", {"attention_head_size": 7}, "attention_head_size is 7; it must be 64"),
    ("DebertaV2Config", {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd 'batch_norm' is not"),
    ("DebertaV2Config", {"pos_att_type": "p2p|c2p"}, "pos_att_type 'p2p' is not known"),
    ("DebertaV2Config", {"pos_att_type": [1]}, "pos_att_type is .*; it must be a list of"),
    ("ModernBertModel", {"head_mask": torch.ones(4)}, "has no argument 'head_mask'"),
    ("ModernBertModel", {"token_type_ids": IDS}, "no argument 'token_type_ids'"),
    ("ModernBertModel", {"cu_seqlens": BATCH}, "cu_seqlens is not supported: use transformers"),
    ("ModernBertModel", {"batch_size": 3}, "batch_size is not supported"),
    ("ModernBertConfig", {"position_embedding_type": "alibi"}, "'alibi'; it must be 'absolute'"),
    ("ModernBertConfig", {"is_decoder": True}, "is_decoder is True; it must be False"),
    ("XLNetModel", {"mems": [IDS]}, r"mems is not supported: use transformers\.XLNetModel, with"),
    ("XLNetModel", {"use_mems": True}, "use_mems is not supported: use transformers"),
    ("XLNetModel", {"input_mask": IDS}, "input_mask is not supported: use transformers"),
    ("XLNetModel", {"perm_mask": BATCH}, r"perm_mask has shape \(1, 2\); it must be \(3, 5, 5\)"),
    ("XLNetModel", {"target_mapping": BATCH}, "it must be .3, predictions, 5."),
    ("XLNetModel", {"token_type_ids": IDS + 1}, r"there are 8 segments, 0\.\.7"),
    ("XLNetForQuestionAnswering", {}, "XLNetForQuestionAnswering is not supported: use transf"),
    ("XLNetConfig", {"attn_type": "uni"}, "attn_type is 'uni'; it must be 'bi'"),
]


@pytest.mark.parametrize(("name", "given", "message"), OF_FAMILIES)
def test_what_families_do_not_have(name: str, given: dict[str, Any], message: str):
    kind = getattr(ownbert, name)
    if not name.endswith("Config"):
        given = {"input_ids": IDS, **given}
        config = getattr(ownbert, re.split("Model|For", name)[0] + "Config")
        kind = kind(config(**sizes(kind.family.model_type)))
    with pytest.raises(InputError, match=message):
        kind(**given)
