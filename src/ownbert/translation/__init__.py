"""Sequence to sequence: training and use of the encoder-decoder Transformer.

Other parts of OwnBERT find it in the table ``ENCODER_DECODERS`` (``families``) and in the commands.
"""
