"""The study that asks what pruning the tokens of a prompt costs, and which tokens have to stay."""
