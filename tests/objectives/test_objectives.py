"""Losses against plain torch, and steps that do not depend on how they are cut."""

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ownbert.batches.batch import Batch, Example, pack
from ownbert.batches.sampled_softmax import Candidates, CandidateSampler
from ownbert.config.encoder import EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.nn.model import Model
from ownbert.objectives import (
    PRETRAINING,
    BagOfWords,
    CausalLM,
    MaskedLM,
    ReplacedToken,
    SentencePair,
)
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Objective, unmasked
from ownbert.pretraining.pretrain_recipe import PretrainTask
from ownbert.tasks.row_objectives import SingleLabelObjective
from ownbert.train.step import NotANumber, StepStats, count_targets, step
from ownbert.train.training_settings import Optim

OBJECTIVES: list[Objective] = [MaskedLM(weight=0.7), SentencePair(weight=1.5)]


def example(rng: np.random.Generator, length: int, masked: int) -> Example:
    ids = rng.integers(5, 40, length)
    positions = np.sort(rng.choice(length, masked, replace=False))
    types = (np.arange(length) > length // 2).astype(int)
    label = int(rng.integers(2))
    return Example(ids, types, positions, rng.integers(5, 40, masked), label, int(rng.integers(3)))


def examples() -> list[Example]:
    rng = np.random.default_rng(0)
    return [example(rng, n, m) for n, m in [(9, 1), (20, 7), (5, 2), (12, 0), (30, 11), (1, 1)]]


@pytest.mark.parametrize("objective", [MaskedLM(), SentencePair(), SingleLabelObjective()])
def test_loss_and_accuracy_are_those_of_torch(objective: Objective):
    batch = pack(examples())
    targets = {"mlm": batch.masked_ids, "nsp": batch.next_sentence, "classification": batch.labels}
    target = targets[objective.head]
    assert target is not None
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(target), 40 if objective.head == "mlm" else 3, generator=generator)
    logits[torch.arange(0, len(target), 2), target[::2]] = 9.0
    logits.requires_grad_()
    loss = objective(logits, batch)
    assert loss.count == objective.count(batch) == len(target)
    assert int(loss.correct) == int((logits.argmax(-1) == target).sum())
    assert 0 < int(loss.correct) < len(target)
    torch.testing.assert_close(loss.total / loss.count, F.cross_entropy(logits, target))
    (grad,) = torch.autograd.grad(loss.total, logits)
    expected = logits.softmax(-1).detach() - F.one_hot(target, logits.shape[1])
    torch.testing.assert_close(grad, expected)


def test_loss_of_bfloat16_logits_is_summed_in_float32():
    batch = pack(examples())
    logits = torch.randn(batch.sequences, 3, generator=torch.Generator().manual_seed(1))
    loss = SingleLabelObjective()(logits.bfloat16(), batch)
    assert loss.total.dtype == torch.float32
    exact = SingleLabelObjective()(logits.bfloat16().double(), batch)
    torch.testing.assert_close(loss.total, exact.total.float())


def test_every_pretraining_objective_has_its_weight_in_the_recipe():
    defaults = PretrainTask()
    for name, make in PRETRAINING.items():
        objective = make(getattr(defaults, f"{name}_weight"))
        assert objective.name == name


def test_bag_of_words_is_the_mean_log_probability_of_all_words_of_a_sequence():
    rows = [[2, 7, 8, 8, 3], [2, 9, 3], [2, 3]]  # the last one has no words
    batch = pack([Example(np.array(ids), np.zeros(len(ids), int)) for ids in rows])
    masked = replace(
        batch,
        token_ids=batch.token_ids.index_fill(0, torch.tensor([1]), 4),
        masked_positions=torch.tensor([1]),
        masked_ids=torch.tensor([7]),
    )
    ordinary = torch.arange(12) >= 5
    objective = BagOfWords(ordinary=ordinary)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 12, generator=generator, dtype=torch.float32, requires_grad=True)
    log = logits.log_softmax(-1)
    expected = -(log[0, 7] + 2 * log[0, 8]) / 3 - log[1, 9]
    loss = objective(logits, masked)
    assert loss.count == objective.count(masked) == 3
    torch.testing.assert_close(loss.total, expected)
    grads = [torch.autograd.grad(value, logits)[0] for value in (loss.total, expected)]
    torch.testing.assert_close(*grads)


def test_bag_of_words_teaches_the_pooler_by_the_decoder_of_masked_words():
    model = tiny_model()
    learner = Learner(model, [MaskedLM(), BagOfWords()])
    names = {p: name for name, p in model.named_parameters()}
    losses = learner(pack(examples()))
    assert list(losses) == ["mlm", "bow"]
    losses["bow"].total.backward()
    with_gradient = {n for p, n in names.items() if p.grad is not None}
    assert {"pooler.dense.weight", "heads.mlm.decoder.bias"} <= with_gradient
    used = {names[p] for p in learner.used()}
    assert with_gradient <= used
    assert not any(name.startswith("heads.nsp") for name in used)


def test_among_all_words_without_offsets_a_loss_is_that_of_all_words():
    learner, batch = Learner(tiny_model(), [MaskedLM(), BagOfWords()]), pack(examples())
    full = learner(batch)
    everything = Candidates(torch.arange(40), torch.zeros(40))
    for name, loss in learner(replace(batch, candidates=everything)).items():
        torch.testing.assert_close(loss.total, full[name].total)
        assert int(loss.correct) == int(full[name].correct)


def test_with_all_words_as_candidates_gradients_are_those_without():
    gradients = []
    for sampled in (False, True):
        model, batch = tiny_model(), pack(examples())
        if sampled:
            ids = torch.cat((torch.arange(40), torch.tensor([39, 39])))
            offsets = torch.zeros(42).index_fill_(0, torch.tensor([40, 41]), -torch.inf)
            batch = replace(batch, candidates=Candidates(ids, offsets))
        losses = Learner(model, [MaskedLM(), BagOfWords()])(batch)
        sum(loss.total for loss in losses.values()).backward()  # pyright: ignore
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    full, sampled = gradients
    assert full.keys() == sampled.keys()
    for name, gradient in full.items():
        torch.testing.assert_close(sampled[name], gradient, rtol=1e-4, atol=1e-5)


def test_in_training_words_are_compared_with_candidates_and_in_evaluation_with_all():
    model, batch = tiny_model(), pack(examples())
    learner = Learner(model, [MaskedLM()], sampler=CandidateSampler(torch.ones(40) / 40, draws=3))
    exact = Learner(model, [MaskedLM()]).eval()(batch)["mlm"].total
    torch.testing.assert_close(learner.eval()(batch)["mlm"].total, exact)
    totals = {float(learner.train()(batch)["mlm"].total) for _ in range(3)}
    assert len(totals) > 1


def test_a_batch_without_targets_counts_nothing():
    batch = pack([Example(np.array([1, 2]), np.zeros(2, int))])
    for objective in (MaskedLM(), SentencePair(), SingleLabelObjective()):
        assert objective.count(batch) == 0


def descend(model: Model, micro: list[Batch], clip: float = 1e9) -> StepStats:
    """A step of plain gradient descent at rate 1."""
    learner = Learner(model, OBJECTIVES)
    names = [o.name for o in OBJECTIVES]
    return step(
        learner,
        torch.optim.SGD(learner.parameters(), lr=0.1),
        micro,
        dict(zip(names, count_targets(OBJECTIVES, micro), strict=True)),
        objectives=OBJECTIVES,
        optim=Optim(clip=clip),
        rate=1.0,
        precision="float32",
    )


def tiny_model() -> Model:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    return Model(config, ["mlm", "nsp"])


@pytest.mark.parametrize("cuts", [[1], [3], [1, 2, 3, 4, 5], [4, 5]])
def test_a_step_does_not_depend_on_how_it_is_cut(cuts: list[int]):
    model, parts = tiny_model(), examples()
    start = copy.deepcopy(model.state_dict())
    ends = [0, *cuts, len(parts)]
    micro = [pack(parts[a:b]) for a, b in pairwise(ends)]
    sums = descend(model, micro).sums
    stepped = {name: start[name] - value for name, value in model.state_dict().items()}

    plain = tiny_model()
    batch = pack(parts)
    logits = plain(batch).logits
    assert batch.masked_ids is not None
    assert batch.next_sentence is not None
    mlm = F.cross_entropy(logits["mlm"], batch.masked_ids)
    nsp = F.cross_entropy(logits["nsp"], batch.next_sentence)
    (0.7 * mlm + 1.5 * nsp).backward()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(stepped[name], parameter.grad, atol=2e-6, rtol=1e-4)
    assert [sums[name][2] for name in ("mlm", "nsp")] == [22, 6]
    torch.testing.assert_close(sums["mlm"][0], 22 * mlm.detach())
    torch.testing.assert_close(sums["nsp"][0], 6 * nsp.detach())


def test_a_spare_batch_changes_nothing():
    parts = [pack(examples())]
    models = [tiny_model(), tiny_model()]
    seen = descend(models[0], parts), descend(models[1], [*parts, replace(parts[0], dummy=True)])
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict())
    assert seen[0].sums["mlm"][2] == seen[1].sums["mlm"][2] == 22


def test_a_step_leaves_no_gradient_behind():
    model = tiny_model()
    descend(model, [pack(examples())])
    assert all(p.grad is None for p in model.parameters())


def test_clipping_bounds_the_step():
    model = tiny_model()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    seen = descend(model, [pack(examples())], clip=0.01)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close((before - after).norm(), torch.tensor(0.01), rtol=1e-3, atol=0)
    assert seen.norm > 0.01  # that of before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_changes_nothing(value: float):
    model = tiny_model()
    with torch.no_grad():
        model.encoder.embeddings.norm.bias[0] = value
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NotANumber):
        descend(model, [pack(examples())])
    torch.testing.assert_close(model.state_dict(), before, equal_nan=True, rtol=0, atol=0)


def test_the_next_token_is_told_from_those_before_alone():
    batch = pack(examples())
    loss = Learner(tiny_model(), [CausalLM()]).eval()(batch)["clm"]
    decoder = Model(replace(tiny_model().config, is_decoder=True), ["mlm", "nsp"]).eval()
    decoder.load_state_dict(tiny_model().state_dict())
    total, count = torch.zeros(()), 0
    ids = unmasked(batch).split(batch.layout.lengths)
    for sequence, types in zip(ids, batch.type_ids.split(batch.layout.lengths), strict=True):
        alone = decoder(pack([Example(sequence.numpy(), types.numpy())])).logits["mlm"]
        total = total + F.cross_entropy(alone[:-1], sequence[1:], reduction="sum")
        count += len(sequence) - 1
    assert loss.count == CausalLM().count(batch) == count
    torch.testing.assert_close(loss.total, total)
    seen = CausalLM().to_view(batch, {})
    other = copy.deepcopy(seen)
    other.token_ids[8] = 7  # the last token of the first sequence: nothing before may see it
    hidden = [tiny_model().eval()(b).hidden[:8] for b in (seen, other)]
    torch.testing.assert_close(hidden[0], hidden[1], rtol=0, atol=0)


def test_replaced_tokens_are_drawn_from_the_generator():
    batch = pack(examples() * 300)
    assert batch.masked_positions is not None
    assert batch.masked_ids is not None
    logits = torch.full((len(batch.masked_ids), 40), -1e9)
    logits[:, 11], logits[:, 30] = 0.0, float(np.log(3.0))
    torch.manual_seed(0)
    given = ReplacedToken().to_view(batch, {"mlm": logits})
    drawn = given.token_ids[batch.masked_positions]
    assert set(drawn.tolist()) == {11, 30}
    assert (drawn == 30).float().mean() == pytest.approx(0.75, abs=0.02)
    truth = torch.zeros(batch.tokens, dtype=torch.bool)
    truth[batch.masked_positions] = drawn != batch.masked_ids
    assert given.replaced is not None
    assert given.replaced.equal(truth)


def test_the_discriminator_learns_beside_its_generator():
    config = tiny_model().config
    spec = HeadSpec("mlm", activation="gelu")
    models = [
        Model(config, [head], pooler=False, model_type="electra")
        for head in ("discriminator", spec)
    ]
    learner = Learner(models[0], [MaskedLM(), ReplacedToken()], generator=models[1])
    batch = pack(examples())
    losses = learner(batch)
    assert losses["rtd"].count == batch.tokens
    assert losses["mlm"].count == 22
    losses["rtd"].total.backward()
    # What was drawn is a choice: no gradient goes through it (Clark et al. 2020, section 2).
    assert all(p.grad is None for p in models[1].parameters())
    assert all(p.grad is not None for n, p in models[0].named_parameters())
    assert learner.used() == set(learner.parameters())


def test_what_no_objective_needs_is_known():
    model = tiny_model()
    names = {p: name for name, p in model.named_parameters()}
    used = {names[p] for p in Learner(model, [MaskedLM()]).used()}
    unused = set(names.values()) - used
    assert unused == {n for n in names.values() if n.startswith(("pooler.", "heads.nsp."))}
    assert Learner(model, OBJECTIVES).used() == set(model.parameters())
