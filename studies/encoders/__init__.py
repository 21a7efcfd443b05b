"""The study that asks what gating and state-space layers are worth in encoders of masked LM."""
