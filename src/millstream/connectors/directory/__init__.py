"""A directory in which files arrive.

The path of a file: `listing` (finds files that are complete) → `message_builder` (turns files into
messages; `file_reader` and `parquet` read a file, `event_splitter` finds where events end) → the
output. `read_progress` is the bookmark. `reader` connects these parts.
"""
