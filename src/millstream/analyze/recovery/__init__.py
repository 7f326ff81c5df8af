"""Checkpoints, and what a query does after failures and data loss."""
