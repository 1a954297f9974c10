"""The laboratory: small numerical experiments, with the functions that the trainer uses."""
