"""Commands that prepare text for pretraining."""
