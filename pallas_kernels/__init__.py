"""Recurrence kernels with one public operation a package, usable without birdie_jax."""
