"""Declarations of streams, views and queries: each option is checked as far as it can be alone."""

from __future__ import annotations

from millstream.pipeline.declarations.declaration import check_name
from millstream.pipeline.declarations.query import QUERY_OPTIONS, declare_query
from millstream.pipeline.declarations.stream import STREAM_OPTIONS, declare_stream
from millstream.pipeline.declarations.view import VIEW_OPTIONS, declare_view

__all__ = [
    "QUERY_OPTIONS",
    "STREAM_OPTIONS",
    "VIEW_OPTIONS",
    "check_name",
    "declare_query",
    "declare_stream",
    "declare_view",
]
