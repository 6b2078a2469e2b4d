"""Encoder-decoder models under Transformers' names."""
