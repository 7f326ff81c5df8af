"""`App`: the object on which a user declares streams, views and named queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Never, TypeVar, overload

from millstream.connectors import SourceDescription
from millstream.errors import PipelineError
from millstream.pipeline.declarations import (
    STREAM_OPTIONS,
    VIEW_OPTIONS,
    check_name,
    declare_query,
    declare_stream,
    declare_view,
)
from millstream.pipeline.graph import check_graph, check_queries, in_order
from millstream.pipeline.model import (
    Delivery,
    Mode,
    NamedQuery,
    OnDataLoss,
    OnInvalid,
    ParameterValue,
    Reading,
    Stream,
    View,
)
from millstream.pipeline.trigger import Accumulation
from millstream.syntax.source_location import Call, Statement, mistake

__all__ = ["App", "Delivery", "Mode", "OnInvalid", "Reading", "Stream", "View"]

Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """A pipeline: streams, views and named queries."""

    def __init__(self, name: str) -> None:
        self._start(Call.of_user(), name)

    @classmethod
    def declared_by(cls, statement: Statement, name: str) -> App:
        """An app that an SQL statement declares."""
        app = cls.__new__(cls)
        app._start(statement, name)
        return app

    def _start(self, statement: Statement, name: str) -> None:
        self.name = check_name(statement, "app", name)
        self.location = statement.location
        self.streams: dict[str, Stream] = {}
        self.views: dict[str, View] = {}
        self.queries: dict[str, NamedQuery] = {}
        self._undecorated: dict[int, Statement] = {}

    def stream(
        self,
        name: str,
        *,
        schema: str | type | None = None,
        key: str | None = None,
        event_time: str | None = None,
        lateness: str | timedelta = "0 seconds",
        ahead: str | timedelta = "1 minute",
        delivery: Delivery = "exactly_once",
        retention: str | timedelta = "7 days",
        source: SourceDescription | str | None = None,
        dedup: str | timedelta = "1 hour",
        on_invalid: OnInvalid = "reject",
        shed: str | None = None,
        shed_at: float = 0.8,
        rows: str | None = None,
        hide: Mapping[str, str] | None = None,
        description: str = "",
        **unknown: Never,
    ) -> Stream:
        """Declare a stream of events.

        schema: Spark DDL, or a dataclass, msgspec Struct or pydantic model.
        key: the column that decides an event's partition; events of a key stay in order.
        event_time: the TIMESTAMP column that says when an event happened.
        lateness: how long a window waits for late events.
        ahead: how far in the future an event may be dated; a later one is set aside.
        delivery: the guarantee after a crash: exactly_once, at_least_once or at_most_once.
        retention: how long the log keeps events.
        source: what the collector reads events from, or its URL; HTTP works as well.
        dedup: how long a retry with the same id (Idempotency-Key, CloudEvents id) is recognised.
        on_invalid: reject events that do not fit the schema, or keep them in the stream, marked.
        shed: events that may be dropped under load: 'random', or an SQL condition on an event.
        shed_at: how full the journal is when shedding begins, between 0 and 1.
        rows: which events a caller of serve sees, as in "tenant = caller.tenant".
        hide: for each column that not all callers see: who does, as in "caller.role = 'billing'".
        """
        given = locals()
        options = {option: given[option] for option in STREAM_OPTIONS} | unknown
        return self.add_stream(Call.of_user(), name, options)

    @overload
    def view(self, name: Function, /) -> Function: ...

    @overload
    def view(
        self,
        name: str | None = None,
        *,
        sql: str,
        key: str | Sequence[str] | None = None,
        keep: str | timedelta | None = None,
        mode: Mode = "auto",
        reads: Mapping[str, Reading] | None = None,
        on_data_loss: OnDataLoss | None = None,
        trigger: str = "every change",
        accumulation: Accumulation = "accumulate",
        ledger: str | Sequence[str] | None = None,
        shed: str | timedelta | None = None,
        rows: str | None = None,
        hide: Mapping[str, str] | None = None,
        ledger_rows: str | None = None,
        description: str = "",
        **unknown: Never,
    ) -> View: ...

    @overload
    def view(
        self,
        name: str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        keep: str | timedelta | None = None,
        mode: Mode = "auto",
        reads: Mapping[str, Reading] | None = None,
        on_data_loss: OnDataLoss | None = None,
        trigger: str = "every change",
        accumulation: Accumulation = "accumulate",
        ledger: str | Sequence[str] | None = None,
        shed: str | timedelta | None = None,
        rows: str | None = None,
        hide: Mapping[str, str] | None = None,
        ledger_rows: str | None = None,
        description: str = "",
        **unknown: Never,
    ) -> Callable[[Function], Function]: ...

    def view(
        self,
        name: Callable[..., Any] | str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        keep: str | timedelta | None = None,
        mode: Mode = "auto",
        sql: str | None = None,
        reads: Mapping[str, Reading] | None = None,
        on_data_loss: OnDataLoss | None = None,
        trigger: str = "every change",
        accumulation: Accumulation = "accumulate",
        ledger: str | Sequence[str] | None = None,
        shed: str | timedelta | None = None,
        rows: str | None = None,
        hide: Mapping[str, str] | None = None,
        ledger_rows: str | None = None,
        description: str = "",
        **unknown: Never,
    ) -> Any:
        """Declare a view, the result of a continuous query: above a function, or with sql=.

        name: the view's name; by default the function's name.
        key: result columns that identify a row; makes the view a table.
        keep: how long a table's row stays after its window's end, or after its last change.
        mode: real_time or micro_batch; auto chooses real_time where Spark supports it.
        sql: a SELECT in Spark SQL over streams and views.
        reads: how each table among the inputs is read: "changes" or "reference".
        on_data_loss: continue or stop if retention deleted events before the view read them.
        trigger: when a row is output: 'every change', 'every 10 seconds', 'every 100 events',
            'when n > 100', 'at the watermark'.
        accumulation: what is output: accumulate (the whole row), discard (only what is new) or
            retract (the old row, then the new one).
        ledger: counts and sums; the ledger gets an entry for each final row and correction.
        shed: how far the view may fall behind before it processes a sample of its input; rows
            are then estimates with their errors. 'stream': only weigh what its streams have shed.
        rows: which rows a caller of serve sees, as in "tenant = caller.tenant".
        hide: for each column that not all callers see: who does, as in "caller.role = 'billing'".
        ledger_rows: which entries of the ledger, as in "key.tenant = caller.tenant"; by default
            as rows says, if that uses key columns only.
        """
        given, call = locals(), Call.of_user()
        if callable(name):
            return self._decorator(call, None, {})(name)
        options = {option: given[option] for option in VIEW_OPTIONS if option != "name"} | unknown
        if sql is not None:
            return self.add_view(call, name, options)
        return self._decorator(call, name, options)

    def _decorator(
        self, call: Call, name: str | None, options: Mapping[str, Any]
    ) -> Callable[[Function], Function]:
        self._undecorated[id(call)] = call

        def declare(function: Function) -> Function:
            self._undecorated.pop(id(call), None)
            if isinstance(function, type) or not callable(function):
                raise mistake(
                    call, f"{function!r} is not a function", remedy="put @app.view above a def"
                )
            own_name = getattr(function, "__name__", None)
            self.add_view(call, own_name if name is None else name, options, function)
            return function

        return declare

    def query(
        self,
        name: str,
        *,
        sql: str,
        key: str | Sequence[str] | None = None,
        description: str = "",
        **parameters: ParameterValue | type,
    ) -> NamedQuery:
        """Declare a named query: a SELECT over views that clients call and subscribe to.

        sql: a SELECT in DuckDB's SQL, with parameters as in `LIMIT :n`.
        key: result columns that identify a row in the query's changes.
        parameters: each with its default, as in n=50; city=None or n=int has none, and is NULL.
        """
        options = {"sql": sql, "key": key, "description": description}
        return self.add_query(Call.of_user(), name, options, parameters)

    def add_stream(self, statement: Statement, name: object, options: Mapping[str, Any]) -> Stream:
        """Declare a stream by a call or by an SQL statement."""
        stream = declare_stream(statement, name, options)
        self._check_new(stream)
        self.streams[stream.name] = stream
        return stream

    def add_view(
        self,
        statement: Statement,
        name: object,
        options: Mapping[str, Any],
        function: Callable[..., Any] | None = None,
    ) -> View:
        """Declare a view by a call or by an SQL statement."""
        view = declare_view(statement, name, options, function)
        self._check_new(view)
        self.views[view.name] = view
        return view

    def add_query(
        self,
        statement: Statement,
        name: object,
        options: Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> NamedQuery:
        """Declare a named query by a call or by an SQL statement."""
        query = declare_query(statement, name, options, parameters)
        self._check_new(query)
        self.queries[query.name] = query
        return query

    def check(self) -> None:
        """PipelineError if the declarations do not fit together; call it after the last one."""
        for statement in self._undecorated.values():
            raise mistake(
                statement,
                "this view has no query",
                remedy="put @app.view(…) above a function, or add sql='SELECT …'",
            )
        check_graph(self.streams, self.views)
        check_queries(self.queries, self.streams, self.views)

    def views_in_order(self) -> list[View]:
        """The views, each after those that it reads."""
        return in_order(self.views)

    def _check_new(self, new: Stream | View | NamedQuery) -> None:
        kinds: dict[str, Mapping[str, Stream | View | NamedQuery]] = {
            "stream": self.streams,
            "view": self.views,
            "query": self.queries,
        }
        for kind, declared in kinds.items():
            if (old := declared.get(new.name)) is None:
                continue
            raise PipelineError(
                f"the name {new.name!r} is taken by the {kind} in line {old.location.line}",
                remedy="give one of them another name",
                file=new.location.file,
                line=new.location.line,
            )
