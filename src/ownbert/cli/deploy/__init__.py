"""Commands that export, serve and share a model."""
