"""A posterior over the weights of any module."""
