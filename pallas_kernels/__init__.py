"""Kernels for recurrences. Each package has its public operations and does not need birdie_jax."""
