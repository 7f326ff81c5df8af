"""All groups: their definitions, which every server knows, and those with members on this server.

Kafka decides which server owns which partitions of a group's topic. A server that owns none sends
its members to one that does, and leaves the Kafka group with its last member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

from millstream.errors import LogError, QueryError
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import groups_topic
from millstream.log.topics import topic_ids
from millstream.pipeline.pipeline_topics import create_undelivered_topic
from millstream.serve.groups.definition import (
    GroupDefinition,
    GroupRequest,
    decode_definition,
    encode_definition,
    new_generation,
)
from millstream.serve.groups.description import describe_group, read_offsets
from millstream.serve.groups.group import Group
from millstream.serve.groups.group_metrics import GroupMetrics
from millstream.serve.groups.member import Member
from millstream.serve.groups.removal import delete_group
from millstream.serve.groups.start import find_start
from millstream.serve.views.served_view import ServedView
from millstream.serve.views.view_readers import TopicTail
from millstream.syntax.names import suggest
from millstream.values.clock import now_ms
from millstream.values.report import GroupCounts, ProcessReport
from millstream.values.visibility import Visibility
from millstream.web.problem import Problem

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 0.5
_DEFINED_SECONDS = 10.0


class Groups:
    """The groups of one app. Belongs to the event loop.

    `find_source` gives the view, stream or ledger of a kind and name, or raises Problem 404.
    `servers` gives the newest report of each server that runs.
    """

    def __init__(
        self,
        app: str,
        log: LogSettings,
        max_groups: int,
        find_source: Callable[[str, str], ServedView],
        servers: Callable[[], Iterable[ProcessReport]],
    ) -> None:
        self.definitions: dict[str, GroupDefinition] = {}
        self.metrics = GroupMetrics(self.definitions, self.describe)
        self.url = ""  # where members of other servers reach this one
        self._app = app
        self._log = log
        self._max_groups = max_groups
        self._find_source = find_source
        self._servers = servers
        self._active: dict[str, Group] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._defined = asyncio.Event()  # set when a definition changes
        self._tail = TopicTail(log, groups_topic(app), self._handle, newest=None)
        self._stopping: set[asyncio.Task[None]] = set()
        self._producer: Producer

    async def start(self, producer: Producer, url: str) -> None:
        """Read the definitions; `url` is where clients reach this server."""
        self._producer, self.url = producer, url
        await self._tail.start()

    async def run(self) -> None:
        """Redirect members while this server has nothing for them; runs until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for group in list(self._active.values()):
                try:
                    self._check(group)
                except Exception:  # the other groups must not suffer
                    _log.exception("cannot check group %s", group.definition.name)

    async def stop(self) -> None:
        """Hand the partitions over to other servers."""
        self._tail.stop()
        await self.metrics.stop()
        groups = list(self._active.values())
        self._active.clear()
        await asyncio.gather(*(each.stop() for each in groups), *self._stopping)

    def counts(self) -> dict[str, GroupCounts]:
        """For the report of this server."""
        return {name: group.counts() for name, group in self._active.items()}

    def find(self, name: str) -> GroupDefinition:
        """The group of that name; Problem 404 if there is none."""
        definition = self.definitions.get(name)
        if definition is None:
            remedy = suggest(name, self.definitions)
            raise Problem(404, f"there is no group {name[:100]!r}", remedy=remedy)
        return definition

    # --- members ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def join(self, member: Member, visibility: Visibility) -> AsyncIterator[Member]:
        """Create the group if it is new, and make the client a member within the block.

        A new group keeps the visibility of its creator, for all members.
        QueryError if the request is not valid or the group is defined otherwise.
        """
        request = member.request
        request.check()
        await asyncio.wait_for(self._tail.caught_up.wait(), _DEFINED_SECONDS)
        if request.name not in self.definitions:
            await self._create(request, member.caller, visibility)
        definition = self.find(request.name)
        request.check_fits(definition)
        group = await self._activate(definition)
        group.join(member)
        try:
            yield member
        finally:
            member.close()

    async def _create(self, request: GroupRequest, creator: str, visibility: Visibility) -> None:
        if len(self.definitions) >= self._max_groups:
            raise QueryError(
                f"there are {self._max_groups} groups already",
                remedy="drop one with `millstream groups drop`, or raise serve.max_groups",
            )
        served = self._find_source(request.kind, request.source)
        # Raises if they do not fit.
        served.encoding(request.where, request.select, request.lineage, visibility)
        epoch = await self._epoch(served)
        start = await asyncio.to_thread(find_start, self._log, served.topic, epoch, request.after)
        await self._write(
            request.define(
                start=str(start), created_at=now_ms(), creator=creator, visibility=visibility
            )
        )

    async def _activate(self, definition: GroupDefinition) -> Group:
        """The group on this server; it takes part in the Kafka group from now on."""
        name = definition.name
        async with self._locks.setdefault(name, asyncio.Lock()):
            group = self._active.get(name)
            if group is None or group.definition.generation != definition.generation:
                served = self._find_source(definition.kind, definition.source)
                await asyncio.to_thread(create_undelivered_topic, self._app, name, self._log)
                epoch = await self._epoch(served)
                group = Group(
                    self._app, definition, served, epoch, self._log, self._producer, self._release
                )
                group.start()
                self._active[name] = group
            return group

    def _release(self, group: Group) -> None:
        """The last member has left: so does this server."""
        name = group.definition.name
        if self._active.get(name) is not group:
            return

        async def stop() -> None:
            async with self._locks.setdefault(name, asyncio.Lock()):
                if not group.members and self._active.get(name) is group:
                    del self._active[name]
                    await group.stop()

        task = asyncio.get_running_loop().create_task(stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _epoch(self, served: ServedView) -> str:
        if served.kind == "view":
            return served.epoch
        ids = await asyncio.to_thread(topic_ids, self._log, [served.topic])
        if served.topic not in ids:
            raise LogError(
                f"{served.kind} {served.name} has no topic {served.topic} in the log",
                remedy="restart collect, analyze or serve: each creates missing topics",
            )
        return ids[served.topic]

    def _check(self, group: Group) -> None:
        served = group.served
        if served.kind == "view" and (served.topic, served.epoch) != (group.topic, group.epoch):
            _end_members(group, lambda member: member.redirect(None))  # the view was rebuilt
            return
        is_idle = group.is_assigned and not group.partitions
        if is_idle and (url := self._owner_of(group.definition.name)) is not None:
            _end_members(group, lambda member: member.redirect(url))

    def _owner_of(self, name: str) -> str | None:
        """The server with a partition of the group that has the fewest members for it."""
        owners = [
            (report.groups[name].member_count / len(report.groups[name].partitions), report.url)
            for report in self._servers()
            if report.url not in ("", self.url)
            and name in report.groups
            and report.groups[name].partitions
        ]
        return min(owners)[1] if owners else None

    async def describe(self, definition: GroupDefinition) -> dict[str, Any]:
        """The group's members, position and counts, as JSON objects."""
        try:
            served = self._find_source(definition.kind, definition.source)
            epoch = await self._epoch(served)
        except (Problem, LogError) as error:  # the pipeline may have changed since
            found = describe_group(definition, "", {}, {}, self._servers())
            return {**found, "warning": str(error)}
        committed, held = await asyncio.to_thread(
            read_offsets, self._log, self._app, definition.name, served.topic
        )
        return describe_group(definition, epoch, committed, held, self._servers())

    # --- definitions ------------------------------------------------------------------------------

    async def reset(self, name: str, to: str) -> GroupDefinition:
        """Deliver again from another place on: a time, a position, `start` or `end`."""
        held = self.find(name)
        served = self._find_source(held.kind, held.source)
        epoch = await self._epoch(served)
        start = await asyncio.to_thread(find_start, self._log, served.topic, epoch, to)
        changed = msgspec.structs.replace(held, start=str(start), generation=new_generation())
        await self._write(changed)
        return changed

    async def drop(self, name: str) -> None:
        """Remove the group, its position and its messages that are set aside."""
        self.find(name)
        await self._write(None, name)
        await asyncio.to_thread(delete_group, self._log, self._app, name)

    async def _write(self, definition: GroupDefinition | None, name: str = "") -> None:
        """Write a definition, and wait until this server has read it."""
        value = None if definition is None else encode_definition(definition)
        name = name if definition is None else definition.name
        wanted = None if definition is None else definition.generation
        await self._producer.send(groups_topic(self._app), value, key=name)
        deadline = asyncio.get_running_loop().time() + _DEFINED_SECONDS
        while True:
            self._defined.clear()
            held = self.definitions.get(name)
            if held is not None and definition is not None and held.id != definition.id:
                # Another server was faster. Its definition must be the newest one in the topic.
                await self._producer.send(
                    groups_topic(self._app), encode_definition(held), key=name
                )
                return
            if (None if held is None else held.generation) == wanted:
                return
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait_for(self._defined.wait(), max(0.0, left))

    def _handle(self, record: Record) -> None:
        """A record of the topic with the definitions."""
        name = (record.key or b"").decode(errors="replace")
        held = self.definitions.get(name)
        if record.value is None:
            self.definitions.pop(name, None)
            self._end(name, lambda member: member.fail("Gone", f"group {name!r} was dropped"))
        else:
            try:
                definition = decode_definition(record.value)
            except msgspec.MsgspecError:
                return  # of another version
            if held is not None and held.id != definition.id:
                return  # two servers created it at once: the first one counts
            self.definitions[name] = definition
            if held is not None and held.generation != definition.generation:
                self._end(name, lambda member: member.redirect(None))
        self._defined.set()

    def _end(self, name: str, end: Callable[[Member], None]) -> None:
        if (group := self._active.get(name)) is not None:
            _end_members(group, end)


def _end_members(group: Group, end: Callable[[Member], None]) -> None:
    for member in list(group.members):
        end(member)
