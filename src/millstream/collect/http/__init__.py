"""The collector's HTTP API."""
