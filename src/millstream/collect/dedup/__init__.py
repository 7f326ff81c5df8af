"""Recognition of events that were received before."""
