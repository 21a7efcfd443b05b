"""Birdie pre-training for the engine: batches under a mixture, the train step, and the bandit's hook."""
