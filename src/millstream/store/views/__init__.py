"""A view in memory: its rows and newest changes."""
