"""Adds hidden columns to a user's plan, which identify and order its rows."""
