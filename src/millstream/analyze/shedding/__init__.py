"""A view that cannot keep up takes a sample of its input, and its rows tell how sure they are."""
