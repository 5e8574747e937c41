//! The Python part of `cargo xtask test-torch`: stock torch over a simulated card that only counts memory, and the
//! package `gapless` on it. See torch-bench/README.md for the card and python/tests/ for the tests.
//!
//! torch comes from pip, once, into a virtual environment below cargo's target folder (5 GB with its dependencies),
//! one for each release: `--torch 2.15.0` chooses another than the usual one. If it cannot be downloaded, the tests
//! are skipped with a loud message; .ci/skips.txt has the reason. Trainers come into the usual one (100 MB). CuPy and
//! Numba come into an environment of their own (600 MB).

use crate::shell::{self, command};
use crate::skips::Skips;
use crate::tools;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The release that is imported if the user names none.
pub(crate) const USUAL: &str = "2.11.0";

/// Libraries that share the pool with torch, and the CUDA runtime that Numba needs.
const OTHERS: [&str; 4] =
    ["cupy-cuda13x==14.2.0", "numba==0.68.1", "numba-cuda==0.30.4", "nvidia-cuda-runtime>=13,<14"];

/// Trainers for which Gapless has callbacks, and libraries whose files it reads. They are installed beside
/// torch, if possible.
const TRAINERS: [&str; 5] = [
    "transformers==5.22.2",
    "accelerate==1.15.0",
    "lightning==2.6.6",
    "diffusers==0.42.1",
    "safetensors==0.8.0",
];

/// `args`: `--torch` and a release, if another than the usual one is wanted; the others go to pytest.
pub(crate) fn run(args: &[&str], skips: &mut Skips) -> Result<()> {
    let (release, args) = match args {
        ["--torch", release, rest @ ..] => (*release, rest),
        _ => (USUAL, args),
    };
    let bench = shell::target().join("torch-bench");
    let card = bench.join("python/lib");
    build_card(&card)?;
    let folder = if release == USUAL { "python".to_owned() } else { format!("python-{release}") };
    let python = match environment(&bench.join(folder).join("venv"), release) {
        Ok(python) => python,
        Err(error) => {
            skips.add("python/tests", &format!("torch {release} cannot be had ({error:#})"));
            return Ok(());
        }
    };
    if release == USUAL
        && let Err(error) = trainers()
    {
        eprintln!("\n********  NO TRAINERS: they cannot be had ({error:#})  ********\n");
    }
    let others = others();
    if let Err(error) = &others {
        eprintln!("\n********  NO CUPY AND NUMBA: they cannot be had ({error:#})  ********\n");
    }
    let built = shell::built()?;
    let program = built.join("gapless");
    let double = card.join("libgapless_torch_double.so");
    // The real library does not show which hook was called when, so these tests use the double.
    let only_double: Vec<&str> = std::iter::once("--only-double").chain(args.iter().copied()).collect();
    let bench = Bench { python, card, program, others: others.ok() };
    let mut pytest = |library: &Path, args: &[&str]| bench.pytest(library, args, skips);
    pytest(&built.join("libgapless_torch.so"), args)?;
    if uses_double(args) { pytest(&double, &only_double) } else { Ok(()) }
}

/// Brings the environments that the tests of the usual release need, as far as they can be had.
pub(crate) fn download() {
    if environment(&usual(), USUAL).is_ok() {
        let _ = trainers();
    }
    let _ = others();
}

fn usual() -> PathBuf {
    shell::target().join("torch-bench/python/venv")
}

fn trainers() -> Result<()> {
    tools::add(&usual(), &TRAINERS)
}

fn others() -> Result<String> {
    tools::environment(&shell::target().join("torch-bench/others/venv"), &OTHERS, &OTHERS.join(" "))
}

/// True if a test uses the double: in the files named, or in all if none is named.
fn uses_double(args: &[&str]) -> bool {
    let mut named = args.iter().filter(|arg| arg.starts_with("python/tests")).peekable();
    let file = |arg: &str| std::fs::read_to_string(arg.split("::").next().unwrap_or(arg)).unwrap_or_default();
    named.peek().is_none() || named.any(|arg| file(arg).contains("(double"))
}

/// The environment of the tests.
struct Bench {
    python: String,
    /// The folder with the card's libraries.
    card: PathBuf,
    program: PathBuf,
    /// The interpreter with CuPy and Numba, if they could be installed.
    others: Option<String>,
}

impl Bench {
    fn pytest(&self, library: &Path, args: &[&str], skips: &mut Skips) -> Result<()> {
        // Importing torch would take most of a test's time, so programs are forks of a few interpreters.
        let mut words = vec!["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "-n", "2", "--warm"];
        if !args.iter().any(|arg| arg.starts_with("python/tests")) {
            words.push("python/tests");
        }
        words.extend_from_slice(args);
        let mut tests = command(".", &self.python, &words);
        tests
            .env("STANDIN_LIB", &self.card)
            .env("GAPLESS_CARD_LIBRARIES", &self.card)
            .env("STANDIN_GAPLESS", &self.program)
            .env("GAPLESS_LIBRARY", library)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(others) = &self.others {
            tests.env("STANDIN_OTHERS", others);
        }
        shell::watch(tests, skips).with_context(|| format!("the Python tests on {}", library.display()))
    }
}

/// The interpreter of an environment with torch and pytest in it; it is made if there is none.
pub(crate) fn environment(folder: &Path, release: &str) -> Result<String> {
    let packages = [&format!("torch=={release}"), "numpy", "pytest", "pytest-xdist"];
    tools::environment(folder, &packages, &packages.join(" "))
}

/// The card's libraries, as in the wheel; HIP's runtime on the same card, for torch's hooks; and the
/// double of our library.
pub(crate) fn build_card(folder: &Path) -> Result<()> {
    let out = folder.display().to_string();
    shell::run(command(".", "python3", &["card/build.py", &out]))?;
    let libcuda = folder.join("libcuda.so.1").display().to_string();
    let library = |name: &str, source: &str| {
        let (out, soname) = (folder.join(name).display().to_string(), format!("-Wl,-soname,{name}"));
        let flags =
            ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", &soname, "-o", &out];
        shell::run(command("torch-bench", "gcc", &[&flags[..], &[source, &libcuda, "-lpthread"]].concat()))
    };
    library("libamdhip64.so", "standin/hip.c")?;
    library("libgapless_torch_double.so", "python/double.c")
}
