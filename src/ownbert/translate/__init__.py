"""Sequences into sequences: the encoder-decoder Transformer, trained and used."""
