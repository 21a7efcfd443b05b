"""The command `prune`: measure and plot the cost of pruning for a trained model on held-out text."""
