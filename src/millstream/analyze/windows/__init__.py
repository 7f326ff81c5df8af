"""Kinds of windows: each answers for itself what the rest of the tier needs to know."""
