"""What is only there to be fast: each computes the same as a few plain lines of PyTorch."""
