"""Whether a stream's events are still of the shape that they had: fields whose values shift."""
