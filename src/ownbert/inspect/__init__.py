"""Inspection of models and runs: parameters, shapes, attention, relevance, lists of runs."""
