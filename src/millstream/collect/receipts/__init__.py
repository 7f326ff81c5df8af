"""Receipts: their signing key, and the lookup of the event that one names."""
