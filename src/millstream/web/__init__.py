"""HTTP for every tier: connections within limits, TLS, CORS, authentication, responses."""
