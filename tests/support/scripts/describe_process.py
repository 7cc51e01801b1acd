"""A script that prints what a script can know of how it was started."""

from __future__ import annotations

import json
import sys


class Defined:
    """A class of __main__."""


def facts():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "path": sys.path,
        "name": __name__,
        "file": __file__,
        "package": __package__,
        "doc": __doc__,
        "spec": __spec__ and __spec__.name,
        "loader": type(__loader__).__name__,
        "cached": globals().get("__cached__", "absent") is None,
        "names": sorted(vars(main)),
        "main": main.Defined is Defined,
        "module": Defined.__module__,
        "flags": str(sys.flags),
        "stdin": sys.stdin.read(),
        "fastloop": [name for name in vars(main) if "fastloop" in name],
    }


if __name__ == "__main__":
    print(json.dumps(facts(), indent=1))
    print("on stderr", file=sys.stderr)
