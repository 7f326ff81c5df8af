"""A Kafka topic that another system writes."""
