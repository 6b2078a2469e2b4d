"""The runs below a folder, side by side."""
