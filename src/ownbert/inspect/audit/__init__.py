"""What a model remembers of the texts that it was trained on."""
