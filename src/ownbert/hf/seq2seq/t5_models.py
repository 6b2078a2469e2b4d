"""T5's classes with a decoder; its encoder alone is a family like others."""

from typing import Any

from torch import Tensor

from ownbert.errors import InputError
from ownbert.families.t5 import T5_ENCODER_DECODER
from ownbert.hf.arguments import signature
from ownbert.hf.classes import config_of
from ownbert.hf.forward_pass import losses
from ownbert.hf.forward_pass.inputs import PackedInputs
from ownbert.hf.seq2seq.encoder_decoder_models import ARGUMENTS, EncoderDecoderModel
from ownbert.nn.heads import ClassificationHead
from ownbert.nn.model import Outputs

_CACHE = ("past_key_values", "cache_position")  # arguments of generative classes


class _T5(EncoderDecoderModel):
    config_class = config_of(T5_ENCODER_DECODER.model_type)
    kind = T5_ENCODER_DECODER

    def _decoder_masks(self, given: dict[str, Any]) -> dict[str, Tensor]:
        """The encoder's mask also applies to the decoder if both have the same number of layers."""
        self_mask = given.get("decoder_head_mask")
        if self_mask is None and self.config.num_layers == self.config.num_decoder_layers:
            self_mask = given.get("head_mask")
        found = {} if self_mask is None else {"decoder_head_mask": self_mask}
        return {**found, **super()._decoder_masks({**given, **found})}

    def _shift_right(self, input_ids: Tensor) -> Tensor:
        return self.prepare_decoder_input_ids_from_labels(input_ids)


class T5ForConditionalGeneration(_T5):
    """T5 with a language model head, for text generation.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    architecture = T5_ENCODER_DECODER.architecture
    caches_with_labels = True


class T5Model(_T5):
    """T5 without a head; returns the hidden states of its decoder.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    architecture = "T5Model"
    arguments = signature(tuple(name for name in ARGUMENTS if name != "labels"))


class T5ForSequenceClassification(_T5):
    """T5 for sequence classification: the decoder reads the text again; its last end token is
    pooled.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    architecture = "T5ForSequenceClassification"
    arguments = signature(tuple(name for name in ARGUMENTS if name not in _CACHE))

    def _written(self, given: dict[str, Any]) -> Tensor | None:
        return _shifted(self, given)

    def _answers(
        self, given: dict[str, Any], out: Outputs, packed: PackedInputs
    ) -> dict[str, Tensor]:
        head, ids = self.model.heads["classification"], given.get("input_ids")
        assert isinstance(head, ClassificationHead)
        if ids is None:
            raise InputError(
                f"{type(self).__name__} needs input_ids: it classifies the last end token"
            )
        hidden = packed.padded(out.hidden)  # (B, S, D)
        ends = ids == self.config.eos_token_id
        if ends.shape != hidden.shape[:2] or not bool(ends.any(1).all()):
            raise InputError(
                f"every text must have the end token {self.config.eos_token_id}, and be as long "
                "as the decoder's input"
            )
        last = ends.shape[1] - 1 - ends.flip(1).long().argmax(1)  # (B)
        rows = hidden[range(len(hidden)), last]
        return {"logits": head.scores(rows, packed.batch)}

    def _loss(self, given: dict[str, Any], values: dict[str, Any]) -> Tensor | None:
        labels = given.get("labels")
        return None if labels is None else losses.sequence(values["logits"], labels, self.config)


class T5ForQuestionAnswering(_T5):
    """T5 for question answering: the decoder reads the text again.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    architecture = "T5ForQuestionAnswering"
    arguments = signature(
        tuple(
            other
            for name in ARGUMENTS
            if name not in (*_CACHE, "labels")
            for other in (
                ("start_positions", "end_positions", name) if name == "inputs_embeds" else (name,)
            )
        )
    )

    @property
    def answer_fields(self) -> tuple[str, ...]:
        return "start_logits", "end_logits"

    def _written(self, given: dict[str, Any]) -> Tensor | None:
        return _shifted(self, given)

    def _answers(
        self, given: dict[str, Any], out: Outputs, packed: PackedInputs
    ) -> dict[str, Tensor]:
        logits = packed.padded(out.logits["span"])  # (B, S, 2)
        return dict(zip(self.answer_fields, logits.unbind(-1), strict=True))

    def _loss(self, given: dict[str, Any], values: dict[str, Any]) -> Tensor | None:
        return losses.span(values, given)


def _shifted(model: EncoderDecoderModel, given: dict[str, Any]) -> Tensor | None:
    """The default decoder input: the text itself, shifted by one token."""
    ids = given.get("input_ids")
    if ids is None:
        raise InputError("give input_ids, or decoder_input_ids with encoder_outputs")
    return model.prepare_decoder_input_ids_from_labels(ids)


CLASSES = (T5ForConditionalGeneration, T5Model, T5ForSequenceClassification, T5ForQuestionAnswering)
for _class in CLASSES:
    _class.__module__ = "ownbert.hf"
