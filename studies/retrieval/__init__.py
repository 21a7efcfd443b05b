"""The study that asks whether Birdie's pre-training teaches retrieval."""
