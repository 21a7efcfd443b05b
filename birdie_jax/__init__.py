"""birdie-jax: pre-training state-space language models with the Birdie procedure."""

__version__ = "0.1.0"
