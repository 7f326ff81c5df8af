"""Spark's session and driver, and its plans."""
