"""Fine-tuning for the engine: the examples of tasks, packed into batches, in stages, from a checkpoint."""
