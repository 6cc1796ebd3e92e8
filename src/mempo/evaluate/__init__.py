"""Evaluation: the same loop, the same scores, and a table by number of objectives."""
