"""Chunked recurrences with a matrix state per head, for `gated_delta_rule` and `ssd`."""
