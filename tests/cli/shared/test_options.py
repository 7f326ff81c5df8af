from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from millstream.cli.shared.options import Flags, open_home, settings_of, url_of, with_bootstrap
from millstream.errors import LogError, MachineError, MillstreamError, SettingsError
from millstream.log.settings import LogSettings
from millstream.runtime.home import Home
from millstream.settings import Settings


def test_assignments_become_nested_settings() -> None:
    flags = Flags(("serve.host=0.0.0.0", "log.partitions=3"), serve_port=9000)
    assert flags.sections() == {
        "serve": {"host": "0.0.0.0", "port": 9000},
        "log": {"partitions": "3"},
    }


def test_a_tables_entry_may_have_dots_in_its_name() -> None:
    flags = Flags(("analyze.spark.spark.ui.enabled=true", "log.security.sasl.mechanism=PLAIN"))
    settings = settings_of(None, flags)
    assert settings.analyze.spark == {"spark.ui.enabled": "true"}
    assert settings.log.security == {"sasl.mechanism": "PLAIN"}


def test_a_table_may_be_given_as_json() -> None:
    settings = settings_of(None, Flags(('log.security={"security.protocol": "SSL"}',)))
    assert settings.log.security == {"security.protocol": "SSL"}


def test_json_that_cannot_be_read_is_told_without_what_it_holds() -> None:
    with pytest.raises(SettingsError, match=r"--set log\.security: .* column 28") as caught:
        Flags(('log.security={"sasl.password": "hunter2"',)).sections()
    assert "hunter2" not in str(caught.value)


def test_a_table_that_is_given_as_a_whole_has_no_entries_by_name() -> None:
    with pytest.raises(SettingsError, match=r"another --set gives analyze\.spark as a whole"):
        Flags(("analyze.spark=5", "analyze.spark.spark.ui.enabled=true")).sections()


def test_a_value_may_contain_an_equals_sign() -> None:
    flags = Flags(("analyze.spark.spark.driver.extraJavaOptions=-Da=b",))
    assert settings_of(None, flags).analyze.spark == {"spark.driver.extraJavaOptions": "-Da=b"}


def test_flags_win_over_the_environment_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "millstream.toml").write_text("[serve]\nport = 1\n[collect]\nport = 2\n")
    monkeypatch.setenv("MILLSTREAM_SERVE__PORT", "3")
    pipeline = tmp_path / "pipeline.py"
    assert settings_of(pipeline, Flags()).serve.port == 3
    settings = settings_of(pipeline, Flags(("serve.port=4",), serve_port=5))
    assert settings.serve.port == 5
    assert settings.collect.port == 2


def test_assignments_are_handed_on_as_they_were_written() -> None:
    assert Flags(("a.b=c d",), serve_port=1).arguments() == ["--set", "a.b=c d"]


@pytest.mark.parametrize("text", ["port=1", "serve.port", "", "serve.=1"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"section\.field=value"):
        Flags((text,)).sections()


def test_a_home_of_another_user_is_an_error_that_says_whose_it_is() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home = Path(folder) / "home"
        Home(home).make()
        Path(folder).chmod(0o755)
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)  # nobody
            try:
                open_home(home)
            except MachineError as error:
                os._exit(0 if "only its owner root may; run the command as" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    open_home(Path("/no/such/home"))


def test_a_named_cluster_wins_over_the_homes_broker(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.announce("kafka", bootstrap="127.0.0.1:1")
    named = Settings(log=LogSettings(bootstrap="cluster:9092"))
    assert with_bootstrap(named, home).log.bootstrap == "cluster:9092"
    assert with_bootstrap(Settings(), home).log.bootstrap == "127.0.0.1:1"


def test_without_any_broker_the_error_says_how_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"millstream kafka.*log\.bootstrap"):
        with_bootstrap(Settings(), Home(tmp_path))


def test_the_address_of_a_running_tier_is_found_in_its_home(tmp_path: Path) -> None:
    open_home(tmp_path).announce("serve", url="http://127.0.0.1:7")
    assert url_of("serve", "", tmp_path) == "http://127.0.0.1:7"
    assert url_of("serve", "http://elsewhere/", tmp_path) == "http://elsewhere"
    with pytest.raises(MillstreamError, match="no collect runs in"):
        url_of("collect", "", tmp_path)


def test_the_home_can_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from millstream.cli.group import millstream

    home = Home(tmp_path)
    home.announce("analyze", spark_pid=os.getpid())
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path))
    answer = CliRunner().invoke(millstream, ["status", "--json"], standalone_mode=False)
    assert f'"pid": {os.getpid()}' in answer.output
