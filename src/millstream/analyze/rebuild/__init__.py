"""Rebuilds a view beside the one that is served, compares the two, and swaps them."""
