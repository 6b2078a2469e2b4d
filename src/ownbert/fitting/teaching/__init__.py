"""Training on unlabelled texts with the predictions of other models."""
