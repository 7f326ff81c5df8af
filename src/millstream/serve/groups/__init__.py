"""Groups: clients that share the messages of a view, stream or ledger, and acknowledge them."""
