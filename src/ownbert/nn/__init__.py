"""Batch -> hidden -> logits: attention, blocks, encoder, heads, model.

Dimension letters, here and in all of nn: T tokens of a packed batch, B sequences, S longest
sequence, D hidden, I intermediate, H heads, K head size, V vocabulary, M masked tokens, L layers,
C labels, E embedding size, P patches, N narrow width. A prime marks the other side: T, S and B are
of queries, T', S' and B' of keys.
"""
