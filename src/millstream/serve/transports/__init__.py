"""Ways to send changes: WebSocket, server-sent events, long poll."""
