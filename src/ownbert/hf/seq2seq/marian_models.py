"""MarianMTModel and MarianConfig: translation models."""

from collections.abc import Mapping
from typing import Any, ClassVar

from ownbert.config.encoder import EncoderConfig
from ownbert.families import marian
from ownbert.hf.configs import PretrainedConfig
from ownbert.hf.seq2seq.encoder_decoder_models import EncoderDecoderModel


class MarianConfig(PretrainedConfig):
    """Configuration of marian; keys and defaults as in Transformers."""

    __module__ = "ownbert.hf"
    model_type = marian.MODEL_TYPE
    defaults = marian.DEFAULTS
    aliases: ClassVar[Mapping[str, str]] = {
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
    }
    follows: ClassVar[Mapping[str, str]] = {
        "decoder_vocab_size": "vocab_size",
        "num_hidden_layers": "encoder_layers",
    }

    def structure(self) -> EncoderConfig:
        """The encoder's structure.

        Raises:
            InputError: values are inconsistent.
        """
        return marian.read_config(self.to_dict())[0]


class MarianEncoderDecoder(EncoderDecoderModel):
    """The base of MarianMTModel.

    ``final_logits_bias`` is a parameter here and a buffer in Transformers, and never trained;
    position tables are computed and not in the state dict.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        dict(self.named_parameters())["final_logits_bias"].requires_grad_(False)
