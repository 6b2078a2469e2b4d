"""Sequence to sequence: training and use of the encoder-decoder Transformer."""
