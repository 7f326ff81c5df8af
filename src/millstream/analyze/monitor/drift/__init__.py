"""Drift: detects fields of a stream whose values change their distribution."""
