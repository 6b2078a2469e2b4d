"""What scripts written for Transformers do, run by both: loading, saving, training, deriving."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", "4.57")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)

import ownbert.hf as hf  # noqa: E402
from ownbert.families import FAMILIES  # noqa: E402
from ownbert.hf.classes import config_name  # noqa: E402
from support.padded_models import close, padded, pair  # noqa: E402

BOTH = (transformers, hf)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture
def folder(tmp_path) -> Any:
    theirs, _ = pair("BertForSequenceClassification", num_labels=5, **NO_DROPOUT)
    theirs.save_pretrained(tmp_path)
    return tmp_path


def equal(found: list[Any]) -> None:
    assert found[0] == found[1]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_configurations_by_position(model_type: str):
    name, found = config_name(FAMILIES[model_type]), []
    for lib in BOTH:
        made = getattr(lib, name)
        keys = [(40, 64, 4, 2), (40, 16, 64, 2)][model_type in ("albert", "electra")]
        keys = (40, 64, False, 4, 2) if model_type == "distilbert" else keys
        # The id of its padding is 50,283 by default.
        keys = (50_300, 16, 24, 4, 2) if model_type == "modernbert" else keys
        keys = (40, 64, 16, 128, 2) if model_type == "t5" else keys
        config = made(*keys).to_dict()
        found.append([config.get(k) for k in hf.__getattr__(name).family.defaults])
    equal(found)


def test_keys_of_configurations(tmp_path):
    found = []
    for lib in BOTH:
        config = lib.BertConfig(
            id2label={"1": "b", "0": "a"}, label2id={"a": 0, "b": 1, "B": 1}, custom=[1]
        )
        config.num_labels = 2
        values = config.to_dict()
        config.to_json_file(tmp_path / "config.json")
        again = lib.BertConfig.from_json_file(tmp_path / "config.json")
        part, unused = lib.BertConfig.from_pretrained(
            tmp_path, wrong=1, hidden_size=24, return_unused_kwargs=True
        )
        found.append(
            [
                config.label2id,
                values["id2label"][0],
                again.custom,
                part.hidden_size,
                unused,
                config.torchscript,
                config.finetuning_task,
                again.dtype,
                config._name_or_path,
                lib.BertConfig(torchscript=True).use_return_dict,
            ]
        )
    equal(found)


def test_the_base_alone(folder, tmp_path):
    """What is done to ``model.bert`` must leave the head as it is."""
    found = []
    for lib in BOTH:
        model = lib.BertForSequenceClassification.from_pretrained(folder)
        for parameter in model.bert.parameters():
            parameter.requires_grad = False
        model.bert.save_pretrained(tmp_path / "base")
        again, info = transformers.BertModel.from_pretrained(
            tmp_path / "base", output_loading_info=True
        )
        close(again(**padded())[1], model.bert(**padded())[1])
        missing = model.load_state_dict(pair("BertForMaskedLM")[0].state_dict(), strict=False)
        model.eval()
        found.append(
            [
                model.num_parameters(only_trainable=True),
                model.bert.num_parameters(),
                sorted(model.bert.state_dict()),
                sorted(missing.missing_keys),
                model.bert.training,
                list(info["unexpected_keys"]),
                model.num_labels,
            ]
        )
    equal(found)


class Net(nn.Module):
    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert, self.score = bert, nn.Linear(32, 3)
        nn.init.constant_(self.score.weight, 0.1)
        nn.init.zeros_(self.score.bias)

    def forward(self, **given: torch.Tensor) -> torch.Tensor:
        return self.score(self.bert(**given).pooler_output)


def test_layers_are_frozen_together(folder):
    found = []
    for lib in BOTH:
        model = lib.BertForSequenceClassification.from_pretrained(folder)
        for parameter in model.bert.encoder.layer[1:].parameters():
            parameter.requires_grad = False
        model.bert.encoder.layer[:1].requires_grad_(False)
        found.append({name for name, each in model.named_parameters() if each.requires_grad})
    equal(found)


def test_parameters_within_another_module(folder):
    names, trained = [], []
    for lib in BOTH:
        model = Net(lib.BertForSequenceClassification.from_pretrained(folder).bert)
        frozen = model.bert.encoder.layer[0].attention.self.query.weight
        for name, parameter in model.named_parameters():
            if "layer.0.attention.self.query" in name or "layer.1." in name:
                parameter.requires_grad = False
        before = frozen.detach().clone()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
        nn.functional.cross_entropy(model(**padded()), torch.tensor([0, 1, 2])).backward()
        optimizer.step()
        assert torch.equal(frozen, before)
        named = list(model.named_parameters())
        names.append([name for name, _ in named])
        trained.append([(p.requires_grad, p.shape) for _, p in named])
    equal(names)
    equal(trained)


def test_processes_share_the_gradients_of_all_parameters(folder, tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        losses = []
        for wrap in (lambda model: model, nn.parallel.DistributedDataParallel):
            model = wrap(Net(hf.BertModel.from_pretrained(folder)).train())
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            for _ in range(3):  # a parameter outside the graph is an error in the second step
                loss = nn.functional.cross_entropy(model(**padded()), torch.tensor([0, 1, 2]))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(losses[1], losses[0])


def test_averages_of_weights(folder):
    for wrap in (lambda model: model, Net):
        model = wrap(hf.BertModel.from_pretrained(folder)).eval()
        mean = torch.optim.swa_utils.AveragedModel(model)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        mean.update_parameters(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(2.0)
        mean.update_parameters(model)
        averaged = list(mean.module.parameters())
        for number, (parameter, old) in enumerate(zip(averaged, before, strict=True)):
            assert torch.allclose(parameter, old + 1.0, atol=1e-5), number


def test_training_with_groups_by_name(folder):
    losses = []
    for lib in BOTH:
        model = Net(lib.BertForSequenceClassification.from_pretrained(folder).bert).train()
        plain = ("bias", "LayerNorm.weight")
        groups = [
            {
                "params": [
                    p for n, p in model.named_parameters() if any(x in n for x in plain) == ends
                ]
            }
            for ends in (False, True)
        ]
        groups[0]["weight_decay"], groups[1]["weight_decay"] = 0.5, 0.0
        optimizer = torch.optim.AdamW(groups, lr=1e-2)
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(**padded()), torch.tensor([0, 1, 2]))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_what_from_pretrained_takes(folder):
    found, numbers = [], []
    for lib in BOTH:
        kind = lib.BertForSequenceClassification
        other, info = kind.from_pretrained(
            folder, num_labels=2, ignore_mismatched_sizes=True, output_loading_info=True
        )
        short = kind.from_pretrained(folder, num_hidden_layers=1, config=None)
        within = kind.from_pretrained(folder.parent, subfolder=folder.name)
        config = lib.BertConfig.from_pretrained(folder, output_hidden_states=True)
        tagger = lib.BertForTokenClassification.from_pretrained(folder, config=config)
        decoder = lib.BertLMHeadModel.from_pretrained(
            folder, is_decoder=True, add_cross_attention=True
        )
        kind.from_pretrained(folder, torch_dtype="bfloat16").save_pretrained(folder / "half")
        half = kind.from_pretrained(folder / "half", torch_dtype="auto")
        found.append(
            [other.classifier.weight.shape, sorted(n for n, *_ in info["mismatched_keys"])]
            if lib is hf
            else [other.classifier.weight.shape, ["classifier.bias", "classifier.weight"]]
        )
        found[-1] += [str(half.dtype), decoder.config.add_cross_attention]
        found[-1] += [str(kind.from_pretrained(folder / "half").config.dtype)]
        numbers.append(
            (short(**padded()).logits, within(**padded()).logits, tagger.classifier.weight)
        )
    equal(found)
    close(numbers[1], numbers[0])


def test_saving_other_weights(folder, tmp_path):
    model = hf.BertForSequenceClassification.from_pretrained(folder)
    zeros = {name: tensor * 0 for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "a", is_main_process=False)
    assert not (tmp_path / "a").exists()
    model.save_pretrained(tmp_path / "a", state_dict=zeros)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "a")
    assert not again(**padded()).logits.any()
    assert model(**padded()).logits.all()


def mine(lib: Any) -> Any:
    class Mine(lib.BertPreTrainedModel):
        def __init__(self, config: Any, times: int = 1) -> None:
            super().__init__(config)
            self.bert, self.times = lib.BertModel(config), times
            self.score = nn.Linear(config.hidden_size, config.num_labels)
            self.post_init()

        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            return self.times * self.score(self.bert(**given).pooler_output)

    return Mine


def further(lib: Any) -> Any:
    class Further(lib.BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.score = nn.Linear(config.hidden_size, config.num_labels)

        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            pooled = self.bert(**given)[1]
            return self.score(pooled) + self.classifier(pooled)

    return Further


@pytest.mark.parametrize("kind", [mine, further])
@pytest.mark.filterwarnings("ignore")
def test_deriving(kind: Any, folder, tmp_path):
    found = []
    for lib in BOTH:
        model, info = kind(lib).from_pretrained(folder, output_loading_info=True)
        assert model.score.weight.std() < 0.2
        nn.init.constant_(model.score.weight, 0.2)
        nn.init.zeros_(model.score.bias)
        model.save_pretrained(tmp_path / lib.__name__)
        found.append([sorted(info["missing_keys"]), sum(p.numel() for p in model.parameters())])
        found[-1] += [sorted(model.state_dict()), model.training]
    equal(found)
    paths = [tmp_path / lib.__name__ for lib in BOTH]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = [kind(lib).from_pretrained(path) for lib in BOTH for path in paths]
    for model in models[1:]:
        close(model(**padded()), models[0](**padded()))
    # The encoder out of somebody's own model.
    for path in paths:
        close(hf.BertModel.from_pretrained(path)(**padded())[1], models[0].bert(**padded())[1])
    if kind is mine:
        twice = mine(hf).from_pretrained(folder, times=0)
        assert not twice(**padded()).any()


def test_masks_that_are_no_ones_hide(folder):
    mask = padded()["attention_mask"].float()
    mask[2, 3], mask[2, 5] = 0.5, 2
    logits = []
    for lib in BOTH:
        model = lib.BertForSequenceClassification.from_pretrained(folder)
        logits.append(model(padded()["input_ids"], mask).logits)
    close(logits[1], logits[0])


def test_a_decoders_loss_over_holes():
    theirs, ours = pair("BertLMHeadModel", is_decoder=True)
    given = padded()
    given["attention_mask"] = torch.ones_like(given["attention_mask"])
    given["attention_mask"][0, 3] = 0
    labels = given["input_ids"].where(given["attention_mask"].bool(), torch.tensor(-100))
    close(ours(**given, labels=labels).loss, theirs(**given, labels=labels).loss)


def test_outputs_are_made_again_by_torch(folder):
    model = hf.BertForSequenceClassification.from_pretrained(folder)
    out = model(**padded(), labels=torch.tensor([0, 1, 2]))
    again = type(out)((name, value * 2) for name, value in out.items())
    close(again.loss, out.loss * 2)
    assert list(type(out)()) == []


def test_a_larger_table_of_types(folder):
    table, logits = nn.Embedding(3, 32), []
    for lib in BOTH:
        model = lib.BertForSequenceClassification.from_pretrained(folder)
        model.bert.embeddings.token_type_embeddings = table
        types = padded()["input_ids"] % 3
        logits.append(model(**padded(), token_type_ids=types).logits)
    close(logits[1], logits[0])
