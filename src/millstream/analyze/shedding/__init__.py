"""Load shedding: a view that cannot keep up processes a sample of its input."""
