"""A posterior found from data: the objective, the loop, and `fit`."""
