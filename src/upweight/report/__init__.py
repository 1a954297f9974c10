"""What a run or a set of flags means, for people: so far, the objective in words."""
