"""What is learnt from texts without labels that models have answered."""
