"""The rows and texts of ``fit``."""
