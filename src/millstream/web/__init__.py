"""HTTP shared by the tiers: connections within bounds, TLS, CORS, and how to answer.

This package imports no tier.
"""
