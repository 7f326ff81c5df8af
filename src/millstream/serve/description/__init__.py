"""Descriptions of the API: OpenAPI and AsyncAPI."""
