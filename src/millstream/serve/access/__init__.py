"""What a caller sees: the policies of views, streams and ledgers, applied to its claims."""
