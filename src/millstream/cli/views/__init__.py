"""Commands that query, follow, rebuild and check views."""
