"""Batch -> hidden -> logits: attention, blocks, encoder, heads, model."""
