"""Fine-tuning: the examples of tasks become packed batches for the engine."""
