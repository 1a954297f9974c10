"""The loop: plan a batch, take a step, log it, save it."""
