"""Lines over TCP, as a client or as a listener."""
