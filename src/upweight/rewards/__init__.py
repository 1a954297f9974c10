"""How an answer is judged: exact and GSM8K verifiers, and a runner for reward functions. Imports no torch."""
