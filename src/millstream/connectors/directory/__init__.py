"""A directory in which files arrive, read by itself, in the order in which one file passes:

`scan` (what is there, and what of it is whole) → `gather` (files → messages, `files` and `parquet`
read one, `cut` finds where events end) → the output. `progress` is the bookmark, and `reader` puts
it all together.
"""
