"""T5Model and T5ForConditionalGeneration; T5's encoder alone is a family like the others."""

from ownbert.families.t5 import T5_ENCODER_DECODER
from ownbert.hf.arguments import signature
from ownbert.hf.classes import config_of
from ownbert.hf.encoder_decoder import ARGUMENTS, EncoderDecoderModel


class T5ForConditionalGeneration(EncoderDecoderModel):
    """T5 with a head: reads a source, writes a text.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    architecture = T5_ENCODER_DECODER.architecture
    config_class = config_of(T5_ENCODER_DECODER.model_type)
    kind = T5_ENCODER_DECODER


class T5Model(EncoderDecoderModel):
    """T5 without a head: the hidden states of its decoder.

    Arguments and outputs are those of Transformers 4.57.6.
    """

    architecture = "T5Model"
    config_class = config_of(T5_ENCODER_DECODER.model_type)
    kind = T5_ENCODER_DECODER
    arguments = signature(tuple(name for name in ARGUMENTS if name != "labels"))


T5Model.__module__ = T5ForConditionalGeneration.__module__ = "ownbert.hf"
