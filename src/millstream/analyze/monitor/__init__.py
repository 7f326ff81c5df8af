"""Watches running views: their lag, their state, their topics, and drift in their streams."""
