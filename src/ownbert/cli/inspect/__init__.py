"""Commands that look inside models, data and runs."""
