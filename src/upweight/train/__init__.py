"""The loop: cut a batch into passes, take a step, log it, save it."""
