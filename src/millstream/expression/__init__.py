"""SQL expressions over one row, compiled to Python: filters, and what a stream may shed."""
