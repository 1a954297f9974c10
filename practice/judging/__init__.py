"""What judge.py is made of: cases, values that travel between processes, their comparison, and the words."""
