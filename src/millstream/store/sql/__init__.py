"""SQL over all views, in DuckDB, in a process of its own."""
