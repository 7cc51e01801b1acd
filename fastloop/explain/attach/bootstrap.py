"""The first code in a script's process: installs the probe, then becomes the script.

Run by its path: python bootstrap.py <folder of the records> [-m] <script> [its arguments]
"""

import sys


def _start() -> None:
    from pathlib import Path

    if not sys.flags.safe_path:
        del sys.path[0]  # this file's folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from fastloop.explain.attach.children import follow_children
    from fastloop.explain.attach.import_hook import install_probe
    from fastloop.explain.attach.script import become_script

    del sys.path[0]
    follow_children(sys.argv[1])
    install_probe(sys.argv[1])
    become_script(sys.argv[2:])


if __name__ == "__main__":
    _start()
