"""Matrices for inference: prepacked, and quantized to 8 bits."""
