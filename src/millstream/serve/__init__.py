"""Serves views to clients: snapshots, changes, SQL, the dashboard."""
