"""All collectors of a cluster use one key, whichever starts first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.collect.conftest import read_topic, shop

from millstream.errors import LogError
from millstream.log import signing_key
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.signing_key import cluster_key
from millstream.log.topic_names import keys_topic
from millstream.pipeline.pipeline_topics import ensure_topics


def test_a_key_is_created_once_and_then_found(app_name: str, log_settings: LogSettings) -> None:
    ensure_topics(shop(app_name), log_settings)
    key = cluster_key(log_settings, app_name)
    assert len(key) == 32
    assert cluster_key(log_settings, app_name) == key
    assert [record.value for record in read_topic(log_settings, keys_topic(app_name))] == [key]


def test_collectors_that_start_at_the_same_moment_end_with_one_key(
    app_name: str, log_settings: LogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics(shop(app_name), log_settings)
    all_have_looked = threading.Barrier(3)

    def write_together(*record: Any) -> None:
        all_have_looked.wait(60)  # each has seen an empty topic
        write(*record)

    monkeypatch.setattr(signing_key, "write", write_together)
    with ThreadPoolExecutor(3) as pool:
        keys = set(pool.map(lambda _: cluster_key(log_settings, app_name), range(3)))
    written = read_topic(log_settings, keys_topic(app_name))
    assert len({record.value for record in written}) == 3
    assert len({record.key for record in written}) == 3  # compaction leaves all of them
    assert keys == {written[0].value}


def test_a_missing_topic_is_an_error_that_names_it(
    app_name: str, log_settings: LogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing_key, "_SECONDS", 0.2)
    with pytest.raises(LogError, match=keys_topic(app_name)):
        cluster_key(log_settings, app_name)
