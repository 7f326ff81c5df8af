"""Authentication and rate limits: who calls a server, what they may do, and how often."""
