"""The official rules of OpenAPI 3.1 and AsyncAPI 3.0, and a pipeline that has everything."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft7Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from millstream import App

# `npm ci` puts it there.
_ASYNCAPI = Path(__file__).parent.parent / "node_modules/@asyncapi/specs/schemas/3.0.0.json"


def pipeline_with_everything() -> App:
    """Every type of column, each kind of view and delivery, policies, a ledger and queries."""
    app = App("shop")
    app.stream(
        "orders",
        schema="id LONG NOT NULL, tenant STRING, total DECIMAL(10, 2), weight DOUBLE, "
        "paid BOOLEAN, tags ARRAY<STRING>, counts MAP<STRING, INT>, "
        "address STRUCT<street: STRING, since: DATE>, card STRING, photo BINARY, at TIMESTAMP",
        key="id",
        event_time="at",
        rows="tenant = caller.tenant",
        hide={"card": "caller.role = 'billing'"},
    )
    app.stream("clicks", schema="page STRING", delivery="at_most_once")
    app.view("order_list", sql="SELECT id, tenant FROM orders", rows="tenant = caller.tenant")
    app.view(
        "per_minute",
        key=["window", "tenant"],
        ledger=["n"],
        sql="SELECT window(at, '1 minute') AS window, tenant, count(*) AS n FROM orders "
        "GROUP BY 1, 2",
        rows="tenant = caller.tenant",
    )
    app.view(
        "by_tenant",
        key=["tenant"],
        sql="SELECT tenant, count(*) AS n, sum(total) AS total FROM orders GROUP BY 1",
        hide={"total": "caller.role = 'billing'"},
    )
    app.query("all_tenants", sql="SELECT * FROM by_tenant", key="tenant")
    app.query(
        "largest",
        sql="SELECT * FROM by_tenant WHERE n > :least AND n < :most AND tenant LIKE :name_like "
        "AND :is_open ORDER BY n DESC LIMIT :count",
        description="The largest tenants",
        least=0.5,
        most=float,
        name_like=None,
        is_open=True,
        count=10,
    )
    return app


def as_sent(document: dict[str, Any]) -> dict[str, Any]:
    """The document as clients get it."""
    sent: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return sent


def openapi_mistakes(document: dict[str, Any]) -> list[str]:
    """What is not OpenAPI 3.1."""
    assert document["openapi"].startswith("3.1.")
    return [
        f"{each.json_path}: {each.message}"
        for each in OpenAPIV31SpecValidator(document).iter_errors()
    ]


def asyncapi_mistakes(document: dict[str, Any]) -> list[str]:
    """What is not AsyncAPI 3.0."""
    return [f"{each.json_path}: {each.message}" for each in _asyncapi().iter_errors(document)]


@cache
def _asyncapi() -> Draft7Validator:
    return Draft7Validator(json.loads(_ASYNCAPI.read_text()))
