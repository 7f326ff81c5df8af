"""Plans each view's query."""
