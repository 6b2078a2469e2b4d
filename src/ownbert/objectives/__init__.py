"""What is learnt: the objectives, and the table of those of pretraining.

Nothing here loads torch or numpy before an objective is used: ``--help`` reads the table too.
"""

from collections.abc import Collection, Mapping

from ownbert.objectives.language_modelling import CausalLM, MaskedLM, PermutationLM, ReplacedToken
from ownbert.objectives.objective import PretrainingObjective
from ownbert.objectives.pooled_objectives import BagOfWords, SentenceOrder, SentencePair
from ownbert.objectives.span_corruption_lm import SpanCorruptionLM

# By the names in recipes, in the order of the log.
PRETRAINING: Mapping[str, type[PretrainingObjective]] = {
    objective.name: objective
    for objective in (
        MaskedLM,
        CausalLM,
        PermutationLM,
        SpanCorruptionLM,
        ReplacedToken,
        SentencePair,
        SentenceOrder,
        BagOfWords,
    )
}


def objectives_of(names: Collection[str]) -> list[type[PretrainingObjective]]:
    """The pretraining objectives with these names, in the order of the table."""
    return [objective for name, objective in PRETRAINING.items() if name in names]
