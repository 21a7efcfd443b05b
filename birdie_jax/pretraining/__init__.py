"""Birdie's pre-training for the engine: batches under a mixture, the train step, the bandit's hook."""
