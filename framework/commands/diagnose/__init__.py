"""Find out why training is slow: measure parts, apply rules to the facts, try the advice."""
