"""The loop, its state, its settings and its log."""
