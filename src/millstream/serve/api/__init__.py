"""HTTP calls that answer at once: rows, SQL, metrics, the dashboard."""
