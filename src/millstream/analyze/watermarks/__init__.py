"""Stream clocks, view watermarks and late events."""
