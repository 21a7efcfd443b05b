"""The study of the effect of Birdie's pre-training on retrieval."""
