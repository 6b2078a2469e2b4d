"""What is only there to train faster: each computes the same as a few plain lines of PyTorch."""
