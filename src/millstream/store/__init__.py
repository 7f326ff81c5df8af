"""Views in memory, and SQL over them."""
