"""Explanations: relevance of words for the predictions of every head, and faithfulness."""
