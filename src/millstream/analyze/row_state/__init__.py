"""State of a view's rows: provisional, final, corrected, deleted."""
