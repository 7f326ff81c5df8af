"""Policies that need claims, on a server where nobody can have any."""

from __future__ import annotations

from millstream.pipeline.app import App
from millstream.serve.settings import ServeSettings


def warn_of_missing_login(app: App, settings: ServeSettings) -> str:
    """Which policies hide something from everybody, and what to do; empty if there are none."""
    if settings.auth or not (names := _need_claims(app)):
        return ""
    return (
        f"the policies of {', '.join(names)} need claims, and nobody has claims without a login: "
        "what they show only to callers with certain claims, nobody sees; set serve.auth, and "
        "give callers claims (`millstream keys create NAME --claim tenant=acme`, or in tokens)"
    )


def _need_claims(app: App) -> list[str]:
    policies = [(f"stream {each.name}", each.policy) for each in app.streams.values()]
    for view in app.views.values():
        policies.append((f"view {view.name}", view.policy))
        policies.append((f"the ledger of {view.name}", view.ledger_policy))
    return [name for name, policy in policies if policy.claims]
