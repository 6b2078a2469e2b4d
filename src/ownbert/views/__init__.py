"""Linear models on fixed features of a text ("views"): what a network has to beat, and what a blend
adds to it. scikit-learn fits them; prediction needs numpy and scipy alone."""
