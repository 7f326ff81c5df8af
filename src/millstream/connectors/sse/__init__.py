"""Server-sent events from another server."""
