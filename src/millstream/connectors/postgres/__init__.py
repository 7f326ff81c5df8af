"""Tables of a PostgreSQL database, and every change to them, by logical replication.

`reader` connects the parts: `catalog` manages publication and slot, `start_point` decides where to
resume, `snapshot` reads the existing rows, `replication_stream` follows the changes. Both make
`change_events` and pass them to the `output_buffer`, with a `bookmark`. `protocol` is the wire
protocol.
"""
