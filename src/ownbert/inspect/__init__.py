"""Inspecting models and runs: parameters, shapes, traces of attention, relevance, run lists."""
