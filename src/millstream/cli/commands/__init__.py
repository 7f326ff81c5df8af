"""Commands that run the system, send events and show its state."""
