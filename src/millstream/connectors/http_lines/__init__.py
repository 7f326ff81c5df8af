"""An endless HTTP response with one event per line."""
