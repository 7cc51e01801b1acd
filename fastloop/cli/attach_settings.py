"""Parse the flags of `fastloop attach`, which come before the script, into AttachSettings."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastloop.core.similar_names import closest_name, suggest

TRY, YES, COPY, MINUTES = "--try", "--yes", "--copy", "--minutes="
BATCHES, SECONDS, HANG, PID = "--batches=", "--seconds=", "--hang=", "--pid="
SWITCHES, NUMBERS = (TRY, YES, COPY), (MINUTES, BATCHES, SECONDS, HANG, PID)
"""The flags without a value, and those with a number."""
LEAST_MINUTES = 0.5
"""Minimum of --minutes. Trying one change takes seven runs of the script, and these take about half
a minute if each imports torch in a second and works on the loop for 3 s. With less time, no change
could be tried, and the observed run before would be wasted."""


@dataclass(frozen=True, kw_only=True)
class TrySettings:
    """Settings of the runs in which changes of a script's DataLoader are tried."""

    minutes: float = 3.0
    """Maximum time in minutes of all these runs together."""
    is_agreed: bool = False
    """True if the script runs again without asking the user."""
    in_copy: bool = False
    """True if the script runs in a copy of the working folder."""


@dataclass(frozen=True, kw_only=True)
class AttachSettings:
    """Settings of a run in which a script is observed."""

    batches: int | None = None
    """Number of batches of the main loop after which the script is ended; None: no limit."""
    seconds: float | None = None
    """Seconds after which the script is ended, or for which a process is sampled. None: the script
    has no limit, and a process is sampled for the default time."""
    hang_s: float = 30.0
    """Seconds without any progress after which a loop is reported to hang."""
    pid: int | None = None
    """The id of a running process to sample; None: a script is run instead."""
    tries: TrySettings | None = None
    """The settings for trying changes; None: no change is tried."""
    script: tuple[str, ...] = ()
    """The words after the flags: the script with its arguments."""


@dataclass(frozen=True, kw_only=True)
class AttachWords:
    """The words of a command line: flags of attach, then the script with its arguments."""

    switches: frozenset[str]
    """Flags without a value."""
    numbers: Mapping[str, float]
    """Flag with a number -> its number."""
    script: list[str]
    """The words after the flags."""


def read_settings(arguments: list[str]) -> AttachSettings:
    """Parse the settings of a command line.

    Raises ValueError, with a message of one line, for a flag that does not exist, for a wrong
    number, for flags that exclude each other, for flags that need --try, and for --try without
    --yes if there is no terminal.
    """
    return _check_words(_read_words(arguments))


def _read_words(arguments: list[str]) -> AttachWords:
    """Parse the words; raises ValueError for a flag that does not exist, or a wrong number."""
    switches: set[str] = set()
    numbers: dict[str, float] = {}
    # As the first flag, `--pid 123` means the same as `--pid=123`.
    if arguments[:1] == [PID[:-1]]:
        arguments = [f"{PID}{''.join(arguments[1:2])}", *arguments[2:]]
    while arguments and arguments[0].startswith("--") and arguments[0] != "--":
        word, *arguments = arguments
        name = next((each for each in NUMBERS if word.startswith(each)), None)
        if name:
            numbers[name] = _positive_number(word, name)
        elif word in SWITCHES:
            switches.add(word)
        else:
            allowed = f"{', '.join((*SWITCHES, *NUMBERS))}; then [-m] <script> [its arguments]"
            hint = _suggest_flag(word, arguments)
            raise ValueError(f"attach {word}: {hint}allowed: {allowed}")
    return AttachWords(switches=frozenset(switches), numbers=numbers, script=arguments)


def _suggest_flag(word: str, following: Sequence[str]) -> str:
    """A hint at the flag that a wrong word probably means; empty if no flag is similar.

    following: the words after the wrong word. The first may be the flag's number.
    """
    name, _, number = word.partition("=")
    by_name = {each.rstrip("="): each for each in (*SWITCHES, *NUMBERS)}
    flag = by_name.get(_closest_flag(name, by_name), "")
    if not flag:
        return ""
    if flag not in NUMBERS:
        return f"{suggest(flag)} "
    # The user may have written `--minutes 2`, as other programs accept it.
    if not number and following and following[0].replace(".", "", 1).isdecimal():
        number = following[0]
    return f"{suggest(flag + (number or '<number>'))} "


def _closest_flag(name: str, flags: Iterable[str]) -> str:
    """The flag that begins with the name, or with which the name begins; else the most similar.

    Empty if no flag is similar. --yes is never returned.
    """
    others = [each for each in flags if each != YES]
    if len(name) > len("--"):
        for flag in others:
            if flag.startswith(name) or name.startswith(flag):
                return flag
    closest = closest_name(name, flags)
    # With --yes the script runs again without a question, so this flag must not be suggested by a
    # guess. If a similar flag begins with the same letter as the name, it is suggested instead.
    if closest == YES:
        same = len("--t")
        return closest_name(name, [each for each in others if each[:same] == name[:same]])
    return closest


def _check_words(words: AttachWords) -> AttachSettings:
    """Make the settings from the flags.

    Raises ValueError for flags that exclude each other, and as `_read_try_settings` does.
    """
    numbers = words.numbers
    if PID in numbers:
        others = [*words.script, *words.switches, *({*numbers} - {PID, SECONDS})]
        if others:
            raise ValueError(f"attach {PID}... {others[0]}: allowed: {SECONDS} alone beside {PID}")
    return AttachSettings(
        batches=int(numbers[BATCHES]) if BATCHES in numbers else None,
        seconds=numbers.get(SECONDS),
        hang_s=numbers.get(HANG, AttachSettings.hang_s),
        pid=int(numbers[PID]) if PID in numbers else None,
        tries=_read_try_settings(words),
        script=tuple(words.script),
    )


def _read_try_settings(words: AttachWords) -> TrySettings | None:
    """Read the settings of --try; None without --try.

    Raises ValueError for flags that need --try, and if there is no terminal on which to ask.
    """
    if TRY not in words.switches:
        if of_tries := [*words.switches, *({MINUTES} & {*words.numbers})]:
            raise ValueError(f"attach {of_tries[0]}: allowed: together with {TRY}")
        return None
    if YES not in words.switches and not sys.stdin.isatty():
        raise ValueError(
            f"attach {TRY}: it asks before it runs the script again, and there is no terminal; "
            f"allowed here: together with {YES}"
        )
    return TrySettings(
        minutes=words.numbers.get(MINUTES, TrySettings.minutes),
        is_agreed=YES in words.switches,
        in_copy=COPY in words.switches,
    )


def _positive_number(word: str, name: str) -> float:
    """Parse the number of a flag such as `--seconds=30`; raises ValueError for a wrong one."""
    least = LEAST_MINUTES if name == MINUTES else 0.0
    allowed = f"{least:g} or more" if least else "a number above 0"
    allowed = "a whole number above 0" if name in (BATCHES, PID) else allowed
    try:
        number = float(word.removeprefix(name))
    except ValueError:
        number = 0.0
    is_number = 0 < number < float("inf") and number >= least
    if not is_number or (name in (BATCHES, PID) and number != int(number)):
        raise ValueError(f"attach {word}: allowed: {allowed}")
    return number
