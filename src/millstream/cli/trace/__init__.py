"""`trace`: follows one event from the collector to every view."""
