"""Views, streams and ledgers in this process, and the subscriptions to them."""
