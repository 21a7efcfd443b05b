"""The study of the value of gating and state-space layers in encoders of masked LM."""
