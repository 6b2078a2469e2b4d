"""ERNIE (Sun et al. 2019): BERT with task types."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import ownbert.families.bert as bert
from ownbert.config.encoder import EncoderConfig
from ownbert.families.mapping.family import CROSSING, Calls, Family, encoder_arguments
from ownbert.families.mapping.weight_map import Rename, WeightMap


def _reads(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"task_type_vocab_size": values["task_type_vocab_size"] if values["use_task_id"] else 0}


def _writes(config: EncoderConfig) -> dict[str, Any]:
    count = config.task_type_vocab_size
    return {"use_task_id": count > 0, "task_type_vocab_size": count or 3}


_INPUTS = ("token_type_ids", "task_type_ids", "position_ids", "head_mask", "inputs_embeds")

ERNIE = Family(
    model_type="ernie",
    weight_map=WeightMap(
        rules=(
            *bert.all_rules("ernie."),
            Rename(
                "encoder.embeddings.task_type.weight",
                "ernie.embeddings.task_type_embeddings.weight",
            ),
        ),
        prefix="ernie.",
        old_names=bert.OLD_NAMES,
    ),
    architectures=bert.classes("Ernie"),
    defaults={**bert.DEFAULTS, "task_type_vocab_size": 3, "use_task_id": False},
    reads=_reads,
    writes=_writes,
    required=bert.REQUIRED,
    calls=Calls(partial(encoder_arguments, inputs=_INPUTS, crossing=CROSSING)),
    dropouts=bert.DROPOUTS,
)
