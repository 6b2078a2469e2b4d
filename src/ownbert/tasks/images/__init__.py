"""Images as the input of a task."""
