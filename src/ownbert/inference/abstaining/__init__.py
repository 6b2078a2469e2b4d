"""Uncertainty: label sets with guaranteed coverage, and detection of out-of-scope texts."""
