//! `--emit`: the first plan, or the given configuration, as files that run.

use super::{failure, flags};
use crate::cli::fit::{EmitTarget, FitArgs};
use crate::output;
use anyhow::{Context, Result};
use gapless_fit::ask::{self, Answer, Question};
use gapless_fit::emit::File;
use std::path::Path;

pub(super) fn write(args: &FitArgs, q: &Question, found: &Answer, wanted: EmitTarget) -> Result<()> {
    let files = ask::files(q, found, flags::emit(wanted)).map_err(failure)?;
    match &args.out {
        Some(folder) => save(folder, &files),
        None => {
            let text: String = if let [one] = &files[..] {
                one.text.clone()
            } else {
                files.iter().map(|file| format!("# ---- {} ----\n{}", file.name, file.text)).collect()
            };
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))
        }
    }
}

fn save(folder: &Path, files: &[File]) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    for file in files {
        let path = folder.join(file.name);
        output::write_to(Some(&path), |out| Ok(out.write_all(file.text.as_bytes())?))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
