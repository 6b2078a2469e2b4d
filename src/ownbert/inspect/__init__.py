"""Looking inside: what a model is made of, and what comes out of each step."""
