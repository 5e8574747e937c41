//! `cargo xtask test-torch`: the model of PyTorch's caching allocator against the real one, out of stock wheels,
//! without a GPU and without Python's torch; then torch in Python (`test_python.rs`). See torch-bench/README.md.
//!
//! Wheels come from pip, once: the needed files (two libraries and the headers, 5 MB of 500) are kept below cargo's
//! target folder. If no wheel can be downloaded, the version is skipped with a loud message (`.ci/skips.txt` has the
//! reason); a difference is a failure.

use crate::parts::Parts;
use crate::shell::{self, command};
use crate::skips::Skips;
use crate::test_python;
use crate::wheels;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// A release of torch, as its wheel for Linux on x86-64 was built.
struct Release {
    version: &'static str,
    /// The major version of CUDA, which is in the runtime library's name.
    cuda: u32,
    /// True if it uses the C++ strings of GCC 5 and later.
    new_strings: bool,
    /// Compared if the user names no version.
    usual: bool,
}

const fn release(version: &'static str, cuda: u32, new_strings: bool, usual: bool) -> Release {
    Release { version, cuda, new_strings, usual }
}

const RELEASES: &[Release] = &[
    release("2.4.1", 12, false, false),
    release("2.5.1", 12, false, false),
    release("2.6.0", 12, false, false),
    release("2.7.1", 12, true, false),
    release("2.8.0", 12, true, true),
    release("2.9.1", 12, true, false),
    release("2.10.0", 12, true, false),
    release("2.11.0", 13, true, true),
    release("2.12.1", 13, true, true),
    release("2.13.0", 13, true, false),
    release("2.14.1", 13, true, false),
    release("2.15.0", 13, true, true),
];

/// The files that are kept of a wheel.
const KEPT: [&str; 4] = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/include/c10/",
    "torch/include/torch/headeronly/",
];

/// `args`: versions (all of the usual ones if none is named), then options for the comparison; or `python`, then
/// arguments for pytest.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let mut parts = Parts::default();
    add(&mut parts, args);
    parts.close()
}

pub(crate) fn add(parts: &mut Parts, args: &[&str]) {
    if let ["python", rest @ ..] = args {
        parts.run("torch-py", |skips| if on_linux(skips) { test_python::run(rest, skips) } else { Ok(()) });
        return;
    }
    parts.run("torch", |skips| compare_all(args, skips));
    if args.is_empty() {
        parts.run("torch-py", |skips| if on_linux(skips) { test_python::run(&[], skips) } else { Ok(()) });
    }
}

/// Brings what the two parts need from pip, as far as it can be had.
pub(crate) fn download() {
    if !is_on_linux() {
        return;
    }
    test_python::download();
    for release in RELEASES.iter().filter(|release| release.usual) {
        let _ =
            wheels::fetch(release.version, &KEPT, &shell::target().join("torch-bench").join(release.version));
    }
}

const fn is_on_linux() -> bool {
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

fn on_linux(skips: &mut Skips) -> bool {
    if !is_on_linux() {
        skips.add("torch", "the wheels are for Linux on x86-64");
    }
    is_on_linux()
}

fn compare_all(args: &[&str], skips: &mut Skips) -> Result<()> {
    let first_option = args.iter().position(|arg| arg.starts_with('-')).unwrap_or(args.len());
    let (versions, options) = args.split_at(first_option);
    let known: Vec<&str> = RELEASES.iter().map(|release| release.version).collect();
    if let Some(unknown) = versions.iter().find(|version| !known.contains(version)) {
        bail!(
            "torch {unknown} is not in the list of xtask/src/test_torch.rs: there are {}",
            known.join(", ")
        );
    }
    if !on_linux(skips) {
        return Ok(());
    }
    let cache = shell::target().join("torch-bench");
    let standin = cache.join("standin");
    build_standin(&standin)?;
    let mut compared = Vec::new();
    let chosen = |r: &&Release| if versions.is_empty() { r.usual } else { versions.contains(&r.version) };
    for release in RELEASES.iter().filter(chosen) {
        let folder = cache.join(release.version);
        if let Err(error) = wheels::fetch(release.version, &KEPT, &folder) {
            skips.add(&format!("torch {}", release.version), &format!("its wheel cannot be had ({error:#})"));
            continue;
        }
        let driver = build_driver(release, &folder, &standin)?;
        compare(release, &driver, options)?;
        compared.push(release.version);
    }
    eprintln!(
        "compared with torch {}",
        if compared.is_empty() { "of no version".to_owned() } else { compared.join(", ") }
    );
    Ok(())
}

/// The stand-ins for CUDA's libraries, under the names by which c10 looks for them.
fn build_standin(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let path = |name: &str| folder.join(name).display().to_string();
    let library = |name: &str, rest: &[&str]| {
        let (out, soname) = (path(name), format!("-Wl,-soname,{name}"));
        let mut args =
            vec!["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", &soname, "-o", &out];
        args.extend_from_slice(rest);
        shell::run(command("torch-bench/standin", "gcc", &args))
    };
    library("libcuda.so.1", &["device.c", "driver_api.c"])?;
    library("libnvidia-ml.so.1", &["nvml.c"])?;
    let libcuda = path("libcuda.so.1");
    for name in ["libcudart.so.12", "libcudart.so.13"] {
        let versions = format!("-Wl,--version-script,{name}.map");
        library(name, &[&versions, "runtime.c", &libcuda, "-ldl"])?;
    }
    Ok(())
}

fn build_driver(release: &Release, folder: &Path, standin: &Path) -> Result<PathBuf> {
    let driver = folder.join("driver");
    let minor = release.version.split('.').nth(1).context("a version has three parts")?;
    let libraries = folder.join("torch/lib");
    let cuda = if release.cuda == 12 { 12080 } else { 13000 };
    let args = [
        "-std=c++20".to_owned(),
        "-O2".to_owned(),
        format!("-DTORCH_MINOR={minor}"),
        format!("-DCUDART_VERSION={cuda}"),
        format!("-D_GLIBCXX_USE_CXX11_ABI={}", u32::from(release.new_strings)),
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE".to_owned(),
        "-isystem".to_owned(),
        folder.join("torch/include").display().to_string(),
        "-isystem".to_owned(),
        "standin/include".to_owned(),
        "driver/driver.cpp".to_owned(),
        "driver/heap.cpp".to_owned(),
        libraries.join("libc10_cuda.so").display().to_string(),
        libraries.join("libc10.so").display().to_string(),
        standin.join(format!("libcudart.so.{}", release.cuda)).display().to_string(),
        standin.join("libcuda.so.1").display().to_string(),
        // An rpath of the old kind also applies to the libraries' own dependencies.
        "-Wl,--disable-new-dtags".to_owned(),
        format!("-Wl,-rpath,{}:{}", libraries.display(), standin.display()),
        "-o".to_owned(),
        driver.display().to_string(),
    ];
    shell::run(command("torch-bench", "g++", &args.iter().map(String::as_str).collect::<Vec<_>>()))?;
    Ok(driver)
}

fn compare(release: &Release, driver: &Path, options: &[&str]) -> Result<()> {
    // A release build runs a fifth faster, but building it takes longer than that saves.
    let program = shell::built()?.join("examples/differential").display().to_string();
    let driver = driver.display().to_string();
    let mut args = vec!["--driver", &driver, "--version", release.version];
    args.extend_from_slice(options);
    shell::run(command(".", &program, &args))
        .with_context(|| format!("the comparison with torch {}", release.version))
}
