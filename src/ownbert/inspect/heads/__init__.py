"""Which attention heads a model needs: importance, pruning, and the score of what is left."""
