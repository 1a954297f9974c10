"""Accuracy on held-out problems, with intervals."""
