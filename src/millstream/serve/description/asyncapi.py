"""The WebSocket's messages as AsyncAPI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import millstream
from millstream.serve.context import State
from millstream.serve.description.messages import SENT
from millstream.serve.description.openapi import message_schemas
from millstream.serve.transports.websocket import PATH, RECEIVED

Described = dict[str, Any]
_CHANNEL = "#/channels/connect"


def describe(state: State) -> Described:
    """The document for /v1/asyncapi.json."""
    messages = {each.__name__: _message(each) for each in (*RECEIVED, *SENT)}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": f"{state.app.name}: serve", "version": millstream.__version__},
        "channels": {
            "connect": {
                "address": PATH,
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
            }
        },
        # The server's own view, as AsyncAPI wants it: it receives what clients send.
        "operations": {
            "request": _operation("receive", RECEIVED),
            "inform": _operation("send", SENT),
        },
        "components": {
            "messages": messages,
            "schemas": message_schemas((*RECEIVED, *SENT)),
        },
    }


def _message(message: type) -> Described:
    return {
        "summary": (message.__doc__ or "").partition("\n")[0],
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{message.__name__}"},
    }


def _operation(action: str, messages: Iterable[type]) -> Described:
    return {
        "action": action,
        "channel": {"$ref": _CHANNEL},
        "messages": [{"$ref": f"{_CHANNEL}/messages/{each.__name__}"} for each in messages],
    }
