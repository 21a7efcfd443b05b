"""What studies of trained models share: running verbs, reading what they left, comparing, tables."""
