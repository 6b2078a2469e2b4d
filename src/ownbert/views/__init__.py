"""Linear models on fixed features of texts ("views"): baselines for a network and members of
blends.

scikit-learn fits the models; prediction needs only numpy and scipy.
"""

# File names of a linear model on a view, and of one on a network's vectors.
LINEAR, PROBE = "linear", "probe"
