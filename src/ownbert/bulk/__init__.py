"""Prediction over more than one process or machine: parts of an input, answered once each."""
