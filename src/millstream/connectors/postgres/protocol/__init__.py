"""PostgreSQL's wire protocol: session, authentication, pgoutput, value conversion."""
