"""The training loop, its state, settings and log."""
