"""The bases of the classes of Marian and T5: what only these models do."""

from typing import Any

from torch import Tensor

from ownbert.exceptions import InputError
from ownbert.hf.forward_pass.inputs import PackedInputs
from ownbert.hf.seq2seq.encoder_decoder_models import EncoderDecoderModel
from ownbert.nn.model import Outputs
from ownbert.nn.output_heads import ClassificationHead


class MarianEncoderDecoder(EncoderDecoderModel):
    """The base of MarianMTModel.

    ``final_logits_bias`` is a parameter here and a buffer in Transformers, and never trained;
    position tables are computed and not in the state dict.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        dict(self.named_parameters())["final_logits_bias"].requires_grad_(False)


class T5EncoderDecoder(EncoderDecoderModel):
    """T5 with a decoder; a classifier's head is on the last end token of each text."""

    def _decoder_masks(self, given: dict[str, Any]) -> dict[str, Tensor]:
        """The encoder's mask also applies to the decoder if both have the same number of layers."""
        self_mask = given.get("decoder_head_mask")
        if self_mask is None and self.config.num_layers == self.config.num_decoder_layers:
            self_mask = given.get("head_mask")
        found = {} if self_mask is None else {"decoder_head_mask": self_mask}
        return {**found, **super()._decoder_masks({**given, **found})}

    def _shift_right(self, input_ids: Tensor) -> Tensor:
        return self.prepare_decoder_input_ids_from_labels(input_ids)

    def _values(
        self, given: dict[str, Any], out: Outputs, packed: PackedInputs, **options: Any
    ) -> dict[str, Any]:
        values = super()._values(given, out, packed, **options)
        if options["kinds"] != ("classification",):
            return values
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
        return {**values, "logits": head.scores(rows, packed.batch)}
