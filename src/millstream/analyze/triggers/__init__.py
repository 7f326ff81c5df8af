"""Triggers, accumulation and ledgers: which rows of a view clients see, and what is entered."""
