"""The first code in a script's process: it installs the probe, then becomes the script.

It is run by its path: python bootstrap.py <folder of the records> [-m] <script> [its arguments]
"""

import sys


def _start() -> None:
    from pathlib import Path

    # Without -P, Python has put this file's folder first on sys.path. Its modules, such as
    # `script`, would shadow the script's own modules of the same name.
    if not sys.flags.safe_path:
        del sys.path[0]
    # fastloop need not be on the script's path. This entry is there for these imports only.
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from fastloop.explain.attach.follow_children import follow_children
    from fastloop.explain.attach.import_hook import install_probe
    from fastloop.explain.attach.script import become_script
    from fastloop.explain.attach.stack_files import write_stacks_on_signals

    del sys.path[0]
    write_stacks_on_signals(sys.argv[1])
    follow_children(sys.argv[1])
    install_probe(sys.argv[1])
    become_script(sys.argv[2:])


if __name__ == "__main__":
    _start()
