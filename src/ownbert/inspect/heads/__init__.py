"""Importance of attention heads, pruning, and the score after pruning."""
