"""Forward passes over rows of a task."""
