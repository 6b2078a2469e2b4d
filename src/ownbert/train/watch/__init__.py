"""Output of a training: log, display, curves, and early stopping."""
