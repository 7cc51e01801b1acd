"""Messages about invalid names and values: one line that names the setting and what is allowed."""

from __future__ import annotations

import pytest
from hydra.errors import MissingConfigException

from fastloop.config.compose import compose_all, compose_job
from fastloop.config.messages import usage_message
from fastloop.config.value_messages import LISTED


def message_of(*overrides: str) -> str:
    """The line that a command with these overrides prints."""
    with pytest.raises(Exception) as error:  # noqa: PT011 - Hydra's, pydantic's or fastloop's
        compose_job(*overrides)
    message = usage_message(error.value)
    assert message is not None
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("seed=100000000000000000000000", "allowed: at most 4611686018427387904"),
        ("batch_size=99999999999999999999", "allowed: at most 2147483647"),
        ("torch_threads=100000", "allowed: at most 1024"),
        ("num_workers=10000", "allowed: at most 1024"),
        ("device_prefetch=1000000000", "allowed: at most 1024"),
        ("num_workers=1 prefetch_factor=1000000000", "allowed: at most 1024"),
        ("learning_rate=inf", "learning_rate=inf: allowed: a finite number"),
        ("order=blocks order.block_size=99999999999999999999", "order.block_size=9999"),
        (
            "loader=fastloop loader.num_threads=100000",
            "loader.num_threads=100000: allowed: at most",
        ),
        ("batch_size='64'", "batch_size='64': allowed: an integer"),
        ("batch_size=abc", "batch_size=abc: allowed: an integer"),
        ("loader._target_=null", "loader._target_=null: allowed: the dotted name of a class"),
        (
            "order._target_=builtins.dict",
            "order: builtins.dict does not implement Order: it lacks complete",
        ),
        ("placement._target_=builtins.int", "placement._target_=builtins.int: TypeError: "),
        ("hydra.searchpath=[nope]", "hydra.searchpath: there is no folder nope"),
        (
            """+loader.requirements=["don't"]""",
            'loader.requirements=["don\'t"]: No closing quotation',
        ),
    ],
)
def test_wrong_values_name_the_setting_and_the_range(overrides, message):
    assert message in message_of(*overrides.split())


@pytest.mark.parametrize(
    "content", [b"_target_: [a\n  b: : c\n", b"# gr\xfc\xdfe\n_target_: x.y\n"]
)
def test_yaml_file_that_can_not_be_read_is_told(tmp_path, content):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "mine.yaml").write_bytes(content)
    message = message_of("-cd", str(tmp_path), "dataset=mine")
    assert message.startswith("a yaml file can't be read")


def test_system_error_names_the_outputs_folder_only_if_it_concerns_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(tmp_path / "out"))
    for path in (tmp_path, tmp_path / "out", tmp_path / "out" / "a" / "b"):
        message = usage_message(PermissionError(13, "Permission denied", str(path)))
        assert message == f"the outputs folder (FASTLOOP_OUTPUTS): Permission denied: '{path}'"
    path = tmp_path / "conf" / "mine.yaml"
    message = usage_message(PermissionError(13, "Permission denied", str(path)))
    assert message == f"Permission denied: '{path}'"
    assert usage_message(OSError(24, "Too many open files")) == "Too many open files"


@pytest.mark.parametrize("override", ["dataset=null", "~loader", "hydra.verbose=true"])
@pytest.mark.parametrize("flags", [("--cfg", "job"), ("--info", "config")])
def test_override_that_no_job_can_have_is_refused_alike_when_the_configuration_is_shown(
    override, flags, monkeypatch, capsys
):
    messages = []
    for words in ((), flags):
        monkeypatch.setattr("sys.argv", ["fastloop run", *words, override])
        with pytest.raises(SystemExit):
            compose_all(lambda _: 1)
        messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"{override}: ")


@pytest.mark.parametrize(
    "override",
    [
        *("über=1", "loader=räw", "batch_size=\uff16\uff14", "batch_size=6\n4", 'batch_size="64'),
        "loader=raw;ls",
        "loader=mine.make()",
        "a=b=c",
        "loader=$(ls)",
    ],
)
def test_characters_that_need_quotes_are_told_with_their_override(override):
    message = message_of(override)
    shown = override.replace("\n", "\\n")
    form = "overrides have the form name=value; a value with special characters"
    assert message.startswith(f"{shown}: {form}")


@pytest.mark.parametrize("length", [300, 5000])
@pytest.mark.parametrize("form", ["{}=1", "loader={}", "batch_size={}", "loader._target_={}"])
def test_long_names_are_cut_off(form, length):
    assert len(message_of(form.format("x" * length))) < 600


@pytest.mark.parametrize("length", [300, 5000])
@pytest.mark.parametrize("form", ["{}=1", "loader={}"])
def test_long_names_are_told_not_to_exist(form, length):
    assert "there is no such" in message_of(form.format("x" * length))


def test_hydra_launcher_of_an_absent_plugin_names_its_package():
    missing = MissingConfigException("", "hydra/launcher/submitit_local", ["basic"])
    assert usage_message(missing) == (
        "hydra/launcher=submitit_local: there is no such option; allowed: basic; "
        "install it by pip install hydra-submitit-launcher"
    )


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ("benchmark=training benchmark.training.nope=1", LISTED),
        ("foo.bar=1", LISTED),
        ("hydra.nope=1", "allowed: what `fastloop run --cfg hydra` shows"),
        (
            "order._target_=mine.Order order.nope=1",
            "`fastloop list order=<option>` lists the settings of an option",
        ),
    ],
)
def test_unknown_setting_names_only_lists_that_exist(overrides, hint):
    override = overrides.split()[-1]
    assert message_of(*overrides.split()) == f"{override}: there is no such setting; {hint}"


@pytest.mark.parametrize(
    "name", ["tracker.uri", "tracker", "trials", "nope", "+nope", "foo.bar", "dataset.root"]
)
def test_value_of_a_wrong_setting_is_shown_without_its_password(name):
    message = message_of(f"{name}=http://me:secret@host/")
    assert "http://host" in message
    assert "secret" not in message
