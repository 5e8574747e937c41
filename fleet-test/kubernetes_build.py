"""Kubernetes from Debian's source package: kube-apiserver and kube-scheduler, and etcd from Debian's binary package.

Nothing is installed: Go and etcd are unpacked below the folder, and Go builds in its old mode (GOPATH), with the
libraries that lie in the source package. The one generated file that the package lacks, the OpenAPI description, is
made first by the generator that lies there too. A build takes some minutes; a later one finds its result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

BINARY_PACKAGES = ["golang-1.19-go", "golang-1.19-src", "etcd-server"]
BUILT = ["kube-apiserver", "kube-scheduler"]
GENERATED = "pkg/generated/openapi"
# Types of these folders are no part of the API.
NOT_API = ("code-generator", "sample-apiserver", "_examples", "testdata")


def build(folder: Path) -> Path:
    """The folder with etcd, kube-apiserver and kube-scheduler; made in `folder` if it is not there yet."""
    programs = folder / "bin"
    if all((programs / name).is_file() for name in [*BUILT, "etcd"]):
        return programs
    missing = [name for name in ["apt-get", "dpkg-deb", "dpkg-source", "grep"] if shutil.which(name) is None]
    if missing:
        sys.exit(f"Kubernetes cannot be built: {', '.join(missing)} not found; this needs Debian with the package dpkg-dev")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building Kubernetes in {folder}: this takes some minutes, once", flush=True)
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    packages(folder / "packages", unpacked)
    tree = folder / "gopath" / "src" / "k8s.io" / "kubernetes"
    shutil.rmtree(folder / "gopath", ignore_errors=True)
    tree.parent.mkdir(parents=True)
    version = source(folder / "source", tree)
    compile_all(folder, unpacked / "usr" / "lib" / "go-1.19", tree, programs, version)
    shutil.copy(unpacked / "usr" / "bin" / "etcd", programs / "etcd")
    # Half a gigabyte that the build leaves and no test needs.
    for name in ["gopath", "cache", "unpacked", "packages", "source"]:
        remove(folder / name)
    return programs


def remove(folder: Path) -> None:
    """Removes a folder in which some folders may be write-protected, as Go's are."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def run(words: list[str], cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs a program to its end, and gives what it printed."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)[:200]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def packages(downloads: Path, unpacked: Path) -> None:
    """Unpacks the binary packages."""
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir()
    run(["apt-get", "download", "-q", *BINARY_PACKAGES], downloads)
    for package in downloads.glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(unpacked)], downloads)


def source(downloads: Path, tree: Path) -> str:
    """Unpacks the source package, from the servers that the machine has its binary packages from. Gives its version."""
    shutil.rmtree(downloads, ignore_errors=True)
    parts = downloads / "parts"
    (downloads / "lists" / "partial").mkdir(parents=True)
    parts.mkdir()
    # The machine's lists of binary packages, read as lists of sources.
    for listed in Path("/etc/apt/sources.list.d").glob("*.sources"):
        lines = listed.read_text().splitlines()
        (parts / listed.name).write_text("\n".join("Types: deb-src" if line.startswith("Types:") else line for line in lines) + "\n")
    old = Path("/etc/apt/sources.list")
    lines = old.read_text().splitlines() if old.is_file() else []
    (parts / "sources.list").write_text("\n".join(f"deb-src {line[4:]}" for line in lines if line.startswith("deb ")) + "\n")
    options = []
    for name, value in [("Etc::sourcelist", "/dev/null"), ("Etc::sourceparts", parts), ("State::lists", downloads / "lists")]:
        options += ["-o", f"Dir::{name}={value}"]
    run(["apt-get", *options, "update", "-q"], downloads)
    run(["apt-get", *options, "source", "-q", "--download-only", "kubernetes"], downloads)
    [description] = downloads.glob("*.dsc")
    run(["dpkg-source", "-x", str(description), str(tree)], downloads)
    # Such as kubernetes_1.20.5+really1.20.2-1.1.dsc: the version that it really is.
    return description.stem.split("_")[1].split("-")[0].split("really")[-1]


def compile_all(folder: Path, goroot: Path, tree: Path, programs: Path, version: str) -> None:
    """Makes the OpenAPI description, then the programs."""
    env = os.environ | {
        "GOROOT": str(goroot),
        "GOPATH": str(folder / "gopath"),
        "GOCACHE": str(folder / "cache"),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }
    go = ["nice", str(goroot / "bin" / "go"), "build"]
    part = folder / "part"
    shutil.rmtree(part, ignore_errors=True)
    run([*go, "-o", f"{part}/openapi-gen", "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], tree, env)
    tagged = run(["grep", "-rl", "--include=*.go", "^// +k8s:openapi-gen=", "cmd", "pkg", "plugin", "staging/src/k8s.io"], tree)
    folders = {str(Path(name).parent) for name in tagged.splitlines() if not any(other in name for other in NOT_API)}
    inputs = sorted("k8s.io/kubernetes/" + name.replace("staging/src/", "vendor/") for name in folders)
    generator = [f"{part}/openapi-gen", "-i", ",".join(inputs), "-p", f"k8s.io/kubernetes/{GENERATED}"]
    rest = ["-O", "zz_generated.openapi", "-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt", "-r", f"{part}/violations"]
    run([*generator, *rest], tree, env)
    flags = f"-s -w -X k8s.io/kubernetes/vendor/k8s.io/component-base/version.gitVersion=v{version}"
    run([*go, "-ldflags", flags, "-o", f"{part}/", *[f"./cmd/{name}" for name in BUILT]], tree, env)
    # The programs appear whole or not at all.
    programs.mkdir(exist_ok=True)
    for name in BUILT:
        (part / name).rename(programs / name)
    shutil.rmtree(part)
