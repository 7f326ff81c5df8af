"""Producers: single records and batches."""
