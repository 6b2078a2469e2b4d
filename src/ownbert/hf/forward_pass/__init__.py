"""The forward pass with Transformers' API: arguments, inputs, outputs and losses."""
