"""What pruning costs a trained model on held-out text, measured, drawn and written: the verb `prune`."""
