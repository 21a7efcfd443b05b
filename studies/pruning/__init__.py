"""The study of the cost of pruning a prompt's tokens, and of the tokens that must stay."""
