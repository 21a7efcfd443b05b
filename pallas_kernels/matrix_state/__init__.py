"""Recurrences whose state is a matrix a head, by chunks: shared by `gated_delta_rule` and `ssd`."""
