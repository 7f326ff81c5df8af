"""The WebSocket's messages as AsyncAPI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import millstream
from millstream.serve.context import Context
from millstream.serve.description.messages import SENT
from millstream.serve.description.openapi import message_schemas
from millstream.serve.transports.client_messages import RECEIVED
from millstream.serve.transports.websocket import PATH

JsonObject = dict[str, Any]
_CHANNEL = "#/channels/connect"


def describe(context: Context) -> JsonObject:
    """The document for /v1/asyncapi.json."""
    messages = {each.__name__: _message(each) for each in (*RECEIVED, *SENT)}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": f"{context.app.name}: serve", "version": millstream.__version__},
        "channels": {
            "connect": {
                "address": PATH,
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
            }
        },
        # AsyncAPI describes the server's side: it receives what clients send.
        "operations": {
            "request": _operation("receive", RECEIVED),
            "inform": _operation("send", SENT),
        },
        "components": {
            "messages": messages,
            "schemas": message_schemas((*RECEIVED, *SENT)),
        },
    }


def _message(message: type) -> JsonObject:
    return {
        "summary": (message.__doc__ or "").partition("\n")[0],
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{message.__name__}"},
    }


def _operation(action: str, messages: Iterable[type]) -> JsonObject:
    return {
        "action": action,
        "channel": {"$ref": _CHANNEL},
        "messages": [{"$ref": f"{_CHANNEL}/messages/{each.__name__}"} for each in messages],
    }
