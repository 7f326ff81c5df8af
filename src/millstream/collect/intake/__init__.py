"""The way of a message from its receipt to Kafka."""
