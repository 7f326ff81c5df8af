"""Batch reads of the log, and SQL over it."""
