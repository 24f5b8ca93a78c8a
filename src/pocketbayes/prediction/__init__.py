"""Answers that say how sure they are: draws of the network, run fast and reduced to one prediction."""
