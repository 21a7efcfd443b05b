"""Parts of the command `prune`, which measures and plots the cost of pruning on held-out text."""
