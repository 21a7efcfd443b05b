"""birdie-jax: pre-training state-space language models with the Birdie procedure."""
