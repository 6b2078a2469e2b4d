"""The trained module: a model with its objectives."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ownbert.batches.batch import Batch
from ownbert.batches.sampled_softmax import CandidateSampler
from ownbert.nn.model import Model
from ownbert.objectives.objective import Loss, Objective, unmasked


class Learner(nn.Module):
    """A model with its objectives.

    Args:
        objectives: objectives; those with the same input view share a forward pass.
        generator: model that predicts the masked tokens instead; ``model`` then reads the tokens
            sampled from its predictions (ELECTRA, Clark et al. 2020, section 2).
        sampler: in training, samples the candidates of the softmax; by default these are all words.
            Cannot be combined with a generator, which samples from all words.
    """

    def __init__(
        self,
        model: Model,
        objectives: Sequence[Objective],
        *,
        generator: Model | None = None,
        sampler: CandidateSampler | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.generator = generator
        self.sampler = sampler
        self.objectives = tuple(objectives)

    def forward(
        self, batch: Batch, objectives: Sequence[Objective] | None = None
    ) -> dict[str, Loss]:
        """The loss of each objective by its name; losses of a dummy batch are zero."""
        objectives = self.objectives if objectives is None else objectives
        losses: dict[str, Loss] = {}
        if self.sampler is not None and self.training:
            candidates = self.sampler(unmasked(batch), batch.token_ids)
            batch = replace(batch, candidates=candidates)
        logits = {}
        # The unchanged batch comes first, because other views may need its logits.
        views = dict.fromkeys(["masked", *(o.input_view for o in objectives)])
        for view in views:
            in_view = [o for o in objectives if o.input_view == view]
            if not in_view:
                continue
            seen, model = in_view[0].to_view(batch, logits), self.model_of(view)
            heads = {o.head for o in in_view}
            outputs = model(seen, [name for name in model.heads if name in heads])
            logits = outputs.logits
            losses |= {o.name: o(o.logits_of(model, outputs, seen), seen) for o in in_view}
        if batch.dummy:
            return {n: Loss(0 * loss.total, 0 * loss.correct, 0) for n, loss in losses.items()}
        return losses

    def model_of(self, view: str) -> Model:
        return self.generator if self.generator is not None and view == "masked" else self.model

    def used(self, objectives: Sequence[Objective] | None = None) -> set[nn.Parameter]:
        """The parameters that the objectives (by default all) train."""
        needed = set()
        for objective in self.objectives if objectives is None else objectives:
            for part in objective.parts(self.model_of(objective.input_view)):
                needed |= set(part.parameters())
        return needed
