"""Linear models on fixed features of texts ("views"): baselines for a network and members of
blends.

scikit-learn fits the models; prediction needs only numpy and scipy.
"""
