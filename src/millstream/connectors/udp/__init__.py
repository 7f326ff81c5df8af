"""Datagrams sent to a local port."""
