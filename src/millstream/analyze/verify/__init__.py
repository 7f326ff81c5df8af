"""Compares a live view with its own query run in batch over the log."""
