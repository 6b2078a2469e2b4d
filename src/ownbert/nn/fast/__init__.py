"""Optimisations of training; each is equivalent to a few plain lines of PyTorch."""
