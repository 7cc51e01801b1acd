"""fastloop env: environments for options with libraries that the main one can't hold.

    fastloop env
    fastloop env loader=<loader> [<setting>=<value> ...]

Without arguments, all environments in outputs/environments/ are listed, with their sizes and
ages. With the arguments of a run, the environments that its jobs need are created: the key
`requirements` in the yaml of a loader, a store or a placement lists the packages that pip
installs. An environment that exists is not created again, and none is created if the main one
has these packages. If pip fails, its reason is printed and nothing is left. While another
command creates an environment, this one waits. `fastloop clean environments yes=true` removes
all of them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastloop.processes.signals import handle_signals, restore_default_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastloop.processes.environments import BuiltEnvironment
    from fastloop.sweep.request import JobRequest


def main() -> None:
    """List the environments, or create those of a command line; exits with 1 on failure."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(__doc__, end="")
        return
    if not arguments:
        _list()
        return
    from fastloop.config.compose import compose_all

    requests = compose_all(lambda _: 0)
    try:
        sys.exit(_create([request for request in requests if not request.is_done]))
    finally:
        restore_default_signals()


def _list() -> None:
    """Print a line for each environment."""
    from fastloop.core.outputs_folder import outputs_folder
    from fastloop.processes.environments import list_environments

    found, damaged = list_environments()
    print(f"{outputs_folder() / 'environments'}: {len(found) or 'none'}")
    for built in found:
        print(_line(built))
    for line in damaged:
        print(f"  {line}")
    if not found and not damaged:
        print("fastloop env loader=<loader> creates the one that a loader needs")


def _line(built: BuiltEnvironment) -> str:
    """A line with the key, size, age and requirements of an environment."""
    from fastloop.cli.clean import describe_age, describe_item
    from fastloop.core.spans import wall_ms

    item = describe_item(built.folder, wall_ms() / 1000)
    size = f"{item.mib:,.1f} MiB, {describe_age(item.age_s)} old"
    return f"  {built.folder.name[:8]}  {size}: {built.label}"


def _name_of(request: JobRequest) -> str:
    """The job's options that may have requirements, such as "loader=hdf5", for messages."""
    groups = ("loader", "placement") if request.job.placement_requirements else ("loader",)
    return " ".join(f"{group}={request.choices[group]}" for group in groups)


def _create(requests: Sequence[JobRequest]) -> int:
    """Create the environments that the requests need, each once. Returns 1 if one of them can't be
    created, else 0."""
    from fastloop.core.outputs_folder import remove_unused
    from fastloop.core.types import Unsupported
    from fastloop.processes.environments import environment_for, find_or_build

    handle_signals()
    status = 0
    done = set[str]()
    for request in requests:
        remove_unused(request.sweep_folder)
        requirements = request.job.requirements
        name = _name_of(request)
        environment = environment_for(requirements)
        if environment is None:
            has = (
                f"the main one has {', '.join(requirements)}" if requirements else "no requirements"
            )
            print(f"{name}: no environment is needed: {has}")
        elif environment.key not in done:
            done.add(environment.key)
            try:
                built, is_new = find_or_build(environment)
            except Unsupported as error:
                print(f"{name}: {error}", file=sys.stderr)
                status = 1
                continue
            print(f"{name}: {'created' if is_new else 'exists'}: {built.folder}")
    return status
