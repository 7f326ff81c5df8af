"""Named queries, and queries that clients subscribe to."""
