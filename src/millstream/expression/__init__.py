"""SQL expressions over one row, compiled to Python, for filters and load shedding."""
