"""A world small enough to enumerate: every estimator against the truth."""
