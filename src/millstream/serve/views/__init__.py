"""Views, streams and ledgers in this process."""
