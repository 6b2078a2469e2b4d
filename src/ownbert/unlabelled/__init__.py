"""Without labels: what a model is of use for before texts are labelled."""
