"""The figures in the prose of pages, as statements that the recorded results determine."""
