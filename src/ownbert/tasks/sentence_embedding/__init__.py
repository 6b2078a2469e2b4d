"""Text embeddings learnt from pairs."""
