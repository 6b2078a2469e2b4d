"""The structure of a network, independent of training and labels."""
