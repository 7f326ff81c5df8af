"""Kafka: connection, topics, records, consumers and producers."""
