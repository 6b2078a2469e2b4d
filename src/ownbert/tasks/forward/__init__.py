"""Forward passes over the rows of a task."""
