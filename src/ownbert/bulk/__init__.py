"""Bulk prediction on several processes or machines: each part of the input is predicted once."""
