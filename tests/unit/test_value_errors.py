"""Every value that a setting does not allow is refused in the words of this command line."""

from __future__ import annotations

import re
import sys
from functools import cache
from subprocess import run

import pytest
from options import options

from fastloop.config.build_jobs import build_job, build_option, build_sweep
from fastloop.config.catalogue import groups, settings
from fastloop.config.composed_values import compose_values
from fastloop.config.messages import ConfigError

WRONG = ("abc", "", -1, 0, 1.5, -0.5, 10**20, True, None, [], ["a"], [0], {"a": 1}, float("nan"))
"""Values of all kinds, of which a setting allows a few."""
PYDANTIC = re.compile(r"Input|valid (?!UTF)|should be|[Vv]alidation|pydantic|Value error|is_|_type")
OF_OPTIONS = [
    pytest.param(group, option, id=f"{group}={option}")
    for group in ("dataset", "order", "transform", "collate", "model", "store", "execution")
    for option in options(group)
    if option != "custom"
]


composed = cache(compose_values)


def refusals(build, name: str) -> list[str]:
    """The messages about those of the wrong values that build() refuses."""
    messages = []
    for value in WRONG:
        try:
            build(value)
        except ConfigError as error:
            messages.append(str(error))
    assert all(name in message for message in messages), messages
    return messages


def check_words(messages: list[str]) -> None:
    for message in messages:
        assert "\n" not in message
        assert not PYDANTIC.search(message.replace("pydantic.py", "")), message
        assert "this value is not allowed" not in message, message


@pytest.mark.parametrize(("group", "option"), OF_OPTIONS)
def test_options_refuse_wrong_values_in_plain_words(group, option):
    (found,) = [
        each for of in groups() if of.name == group for each in of.options if each.name == option
    ]
    choice = f"store@loader.store={option}" if group == "store" else f"{group}={option}"
    loader = ("loader=np_memmap",) if group == "store" else ()
    values = composed(*loader, choice)
    node = values["loader"]["store"] if group == "store" else values[group]
    for setting in found.settings:
        if setting.name == "decoder":
            continue
        name = setting.name
        check_words(
            refusals(lambda value, name=name: build_option(group, node | {name: value}), name)
        )


@pytest.mark.parametrize("setting", [each.name for each in settings() if each.name != "isolation"])
def test_settings_refuse_wrong_values_in_plain_words(setting):
    values = composed()

    def build(value: object) -> None:
        changed = values | {setting: value}
        build_job(changed)
        build_sweep(changed)

    messages = refusals(build, setting)
    assert messages, f"{setting} takes any value"
    check_words(messages)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs=0", "epochs=0: allowed: 1 or more"),
        ("num_workers=-1", "num_workers=-1: allowed: 0 or more"),
        ("num_workers=9999", "num_workers=9999: allowed: at most 1024"),
        ("learning_rate=0", "learning_rate=0: allowed: more than 0"),
        ("pin_memory=1", "pin_memory=1: allowed: true, false"),
        ("precision=half", "precision=half: allowed: float32, bf16, fp16"),
        ("batch_size='64'", "batch_size='64': allowed: an integer"),
    ],
)
def test_message_names_the_setting_its_value_and_what_is_allowed(override, message):
    with pytest.raises(ConfigError) as error:
        build_job(compose_values(override))
    assert str(error.value) == message


def test_folder_of_a_sweep_is_what_resume_allows():
    with pytest.raises(ConfigError) as error:
        build_sweep(compose_values("resume=true"))
    assert str(error.value) == "resume=true: allowed: the folder of a sweep, or last"


def test_wrong_value_is_the_only_line_and_told_before_torch_is_imported():
    """In a fresh interpreter, which otherwise says first what it will do."""
    wrong = ["epochs=0", "num_workers=-1", "device=gpu", "resume=true", "trials=0", "cache=hot"]
    code = (
        "import sys; from contextlib import suppress; from fastloop.run import main\n"
        f"for wrong in {wrong}:\n"
        "    sys.argv[1:] = ['loader=raw', wrong]\n"
        "    with suppress(SystemExit): main()\n"
        "print('torch' in sys.modules)"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == wrong
    assert done.stdout == "False\n"
