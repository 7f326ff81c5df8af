"""Reads the tables of a PostgreSQL database, and every change to them, by logical replication.

`reader` is the whole story: `catalog` sees to publication and slot, `snapshot` reads the rows that
are there, `stream` follows the changes (`pgoutput`). Both make `events` of `values`, and hand them
on through the `outlet`, with a `bookmark`. Below lies the protocol: `connection`, `auth`,
`messages`, `address`, `wire`.
"""
