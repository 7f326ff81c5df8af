"""Messages of another server's WebSocket."""
