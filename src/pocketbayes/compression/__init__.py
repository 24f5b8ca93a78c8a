"""From a trained network and a budget to a file: the only place that knows the order of the stages."""
