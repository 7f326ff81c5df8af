"""Dead letters in topics of the log: rejected and late events."""
