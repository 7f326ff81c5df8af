"""The user's pipeline: loads it, checks it, and describes its streams and views."""
