"""Surprisal of texts, and anomaly detection."""
