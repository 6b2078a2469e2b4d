"""Tasks: how rows are read, the head, the objective, predictions and metrics."""
