"""Reads and writes Kafka records with Spark."""
