"""The tensors of a model under Transformers' names."""
