"""What one client follows: a cursor in a view, and how fast it moves."""
