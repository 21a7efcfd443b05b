"""A mixture by search: small trainings and a law fitted to their losses: the verb `search_mixture`."""
