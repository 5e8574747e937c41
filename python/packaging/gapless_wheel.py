"""Builds the wheel: cargo makes the command and the library, this file puts them into a zip archive beside the Python package.

A backend of our own (PEP 517, PEP 660) because `pip install .` then works without a network, and because one wheel holds three things that
other backends hold one of: a pure package, a library that Python never imports, and a program. The wheel fits every Python 3; it is
bound to the platform that cargo built for.

The contract with pip is the names of the functions; what they return is the archive's file name.
"""

import base64
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = "gapless"
LIBRARY = "libgapless_torch.so"
# Two-second steps since 1980 are what an archive can tell; the same input gives the same bytes.
WHEN = (1980, 1, 1, 0, 0, 0)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    binary, library = _cargo()
    files = [(f"{NAME}/{path}", _read("python", NAME, path), 0o644) for path in _package_files()]
    files.append((f"{NAME}/{LIBRARY}", _read(library), 0o755))
    return _write(wheel_directory, files + [_script(binary)])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The package stays where it is; the library is put into it, where git ignores it."""
    binary, library = _cargo()
    shutil.copy2(library, os.path.join(ROOT, "python", NAME, LIBRARY))
    path = (f"{NAME}.pth", os.path.join(ROOT, "python").encode() + b"\n", 0o644)
    return _write(wheel_directory, [path, _script(binary)])


def build_sdist(sdist_directory, config_settings=None):
    """What git knows of: the whole workspace, since cargo builds from it."""
    folder = f"{NAME}-{_version()}"
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0")
    archive = os.path.join(sdist_directory, folder + ".tar.gz")
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(filter(None, names)):
            tar.add(os.path.join(ROOT, name), f"{folder}/{name}", recursive=False)
        metadata = tarfile.TarInfo(f"{folder}/PKG-INFO")
        text = _metadata()
        metadata.size = len(text)
        tar.addfile(metadata, io.BytesIO(text))
    return os.path.basename(archive)


def _cargo():
    """Builds the command and the library; their paths."""
    command = ["cargo", "build", "--release", "--locked", "--package", "gapless", "--package", "gapless-torch"]
    print("$", " ".join(command), file=sys.stderr, flush=True)
    try:
        subprocess.run(command, cwd=ROOT, check=True)
    except FileNotFoundError:
        raise SystemExit("cargo is not on the PATH: install Rust from https://rustup.rs, or install a wheel that was built elsewhere") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"`{' '.join(command)}` failed with {error.returncode}: its output is above") from None
    release = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
    return os.path.join(ROOT, release, "gapless"), os.path.join(ROOT, release, LIBRARY)


def _package_files():
    top = os.path.join(ROOT, "python", NAME)
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [os.path.relpath(os.path.join(folder, name), top) for name in names if name.endswith((".py", ".pyi", ".typed"))]
    return sorted(found)


def _script(binary):
    return (f"{NAME}-{_version()}.data/scripts/gapless", _read(binary), 0o755)


def _read(*parts):
    with open(os.path.join(ROOT, *parts), "rb") as file:
        return file.read()


def _project(key):
    """A string of [project]. Python 3.9 and 3.10 have no reader of TOML, and these few lines are ours."""
    match = re.search(rf'^{key} = "(.*)"', _read("pyproject.toml").decode(), re.M)
    if match is None:
        raise SystemExit(f"pyproject.toml has no {key}")
    return match.group(1)


def _version():
    return _project("version")


def _metadata():
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {_version()}",
        f"Summary: {_project('description')}",
        f"Requires-Python: {_project('requires-python')}",
        f"License-Expression: {_project('license')}",
        "License-File: LICENSE-MIT",
        "License-File: LICENSE-APACHE",
        "Description-Content-Type: text/markdown",
    ]
    return ("\n".join(lines) + "\n\n").encode() + _read("README.md")


def _platform():
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


def _write(folder, files):
    info = f"{NAME}-{_version()}.dist-info"
    tag = f"py3-none-{_platform()}"
    wheel = f"Wheel-Version: 1.0\nGenerator: gapless_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = files + [
        (f"{info}/METADATA", _metadata(), 0o644),
        (f"{info}/WHEEL", wheel.encode(), 0o644),
        (f"{info}/entry_points.txt", b"[pytest11]\ngapless = gapless.pytest_plugin\n", 0o644),
        (f"{info}/licenses/LICENSE-MIT", _read("LICENSE-MIT"), 0o644),
        (f"{info}/licenses/LICENSE-APACHE", _read("LICENSE-APACHE"), 0o644),
    ]
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data, _ in files] + [f"{info}/RECORD,,"]
    files.append((f"{info}/RECORD", ("\n".join(record) + "\n").encode(), 0o644))
    archive = f"{NAME}-{_version()}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(folder, archive), "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, WHEN)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, data)
    return archive


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
