"""Training: optimizer, step, checkpoint, metrics, and the loop that reads from top to bottom."""
