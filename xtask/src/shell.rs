//! Running programs: each command is printed, starts in the repository's root, and is named in its failure.

use crate::skips::Skips;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// The folder that cargo builds into.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A command in `folder` (relative to the root).
pub(crate) fn command(folder: &str, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root().join(folder));
    command
}

/// Runs a command to its end, with this process's output streams.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let line = describe(&command);
    eprintln!("$ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed with {status}");
    }
    Ok(())
}

/// Runs a test runner to its end. Its output is passed through, and `skips` collects the skipped tests in it.
pub(crate) fn watch(mut command: Command, skips: &mut Skips) -> Result<()> {
    let line = describe(&command);
    eprintln!("$ {line}");
    // One pipe for both, so that lines come in the order in which they were written.
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
    // The command holds ends of the pipe, which would keep it open.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        let text = String::from_utf8_lossy(&bytes);
        print!("{text}");
        skips.see(&text);
        bytes.clear();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` failed with {status}");
    }
    Ok(())
}

/// Runs a command to its end and keeps both of its output streams, in the order in which they were written.
pub(crate) fn captured(mut command: Command, printed: &mut Vec<u8>) -> std::io::Result<ExitStatus> {
    let (mut reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // The command holds ends of the pipe, which would keep it open.
    drop(command);
    reader.read_to_end(printed)?;
    child.wait()
}

/// Runs a command and returns its standard output; its errors go where ours go.
pub(crate) fn output_beside(mut command: Command) -> Result<String> {
    let line = describe(&command);
    eprintln!("$ {line}");
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let done = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !done.status.success() {
        bail!("`{line}` failed with {}", done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a command and returns its output.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let line = describe(&command);
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !done.status.success() {
        bail!("`{line}` failed with {}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Builds every program, library and example as the Rust tests build them: a package built alone would have other
/// features, and be compiled again. Returns their folder.
pub(crate) fn built() -> Result<PathBuf> {
    run(command(".", "cargo", &["build", "--quiet", "--workspace", "--all-targets", "--locked"]))?;
    Ok(target().join("debug"))
}

/// True if `program --version` succeeds.
pub(crate) fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
