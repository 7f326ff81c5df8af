"""Starts and restarts continuous queries."""
