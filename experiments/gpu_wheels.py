"""The few small wheels that `make gpu` needs besides torch and what comes with it, by their names.

Fetches them into a folder, where there is a network, for a machine that has none:

    python experiments/gpu_wheels.py FOLDER [--python-version 3.12]

On that machine torch, torchvision, numpy, scipy, scikit-learn, matplotlib, pillow, psutil, tqdm,
filelock, pyyaml, pytest and hypothesis have to be there; `make gpu WHEELS=FOLDER` takes the rest
from the folder.
"""

import argparse
import subprocess
import sys
from pathlib import Path

WITH_THEIR_NEEDS = ("pydantic", "optree", "pyvers>=0.2,<0.3", "cloudpickle")
"""pydantic asks for one version of pydantic-core: pip finds it."""
ALONE = ("tensordict", "simplejpeg", "dm-tree", "absl-py", "attrs", "wrapt")
"""What these need besides is there (torch, numpy), or stands in one of the two lists."""
NEEDED = ("pydantic", "optree", "tensordict")
"""Without these modules nothing runs; without the others their options are unsupported."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 24, 17, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
MOST_MIB = 60


def fetch(folder: Path, python_version: str) -> list[Path]:
    """The wheels, in the folder; raises CalledProcessError where pip fails."""
    common = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    common += ["--implementation", "cp", "--python-version", python_version, "--dest", str(folder)]
    common += [part for one in PLATFORMS for part in ("--platform", one)]
    subprocess.run([*common, *WITH_THEIR_NEEDS], check=True)
    subprocess.run([*common, "--no-deps", *ALONE], check=True)
    return sorted(folder.glob("*.whl"))


def install(folder: Path, site: Path) -> None:
    """Install every wheel of the folder into `site`, without a network.

    Raises FileNotFoundError where it has none, CalledProcessError where pip fails.
    """
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise FileNotFoundError(
            f"{folder} has no wheels: python experiments/gpu_wheels.py {folder}"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site)]
    subprocess.run([*command, *wheels], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-version", default="3.12", help="of the machine with the GPU")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if any(given.folder.glob("*.whl")):
        print(f"{given.folder} has wheels already: two of one library are one too many")
        return 1
    wheels = fetch(given.folder, given.python_version)
    sizes = [one.stat().st_size / 2**20 for one in wheels]
    for one, size in zip(wheels, sizes, strict=True):
        print(f"{size:6.2f} MiB  {one.name}")
    print(f"{sum(sizes):6.2f} MiB  in {len(wheels)} wheels")
    return int(sum(sizes) > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
