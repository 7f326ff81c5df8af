"""The kinds of sources that the conformance suite runs over."""

from __future__ import annotations

from ..case import Case
from .sse import SseCase
from .websocket import WebSocketCase

CASES: list[type[Case]] = [WebSocketCase, SseCase]
