"""Small languages that users write: names, durations, SQL tokens, URLs; and source locations."""
