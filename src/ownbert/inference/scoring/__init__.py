"""How surprising texts are."""
