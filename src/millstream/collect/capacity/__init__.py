"""Limits: memory, queues for room, pressure and shedding."""
