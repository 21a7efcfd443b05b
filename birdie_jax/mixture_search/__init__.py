"""The command `search_mixture`: train small proxies, fit a law to their losses, and choose a mixture."""
