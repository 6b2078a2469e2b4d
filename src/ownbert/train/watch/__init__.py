"""What is seen of a training: log, display, curves, and when to stop."""
