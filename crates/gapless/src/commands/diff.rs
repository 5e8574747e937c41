//! `gapless diff`: two runs, aligned by their steps.

use crate::cli::{DiffArgs, DiffFormat};
use crate::failure::Failure;
use crate::{Answer, load, output};
use anyhow::Result;
use gapless_report::{diff, markdown};

pub(crate) fn run(args: &DiffArgs) -> Result<Answer> {
    if args.before.as_os_str() == "-" && args.after.as_os_str() == "-" {
        return Err(
            Failure::new("only one run can come from standard input", "name a file for one of them").into()
        );
    }
    let before = load::trace(&args.before)?;
    let after = load::trace(&args.after)?;
    let (before_run, after_run) =
        (load::analyse(&before, &args.before)?, load::analyse(&after, &args.after)?);
    let names = [&args.before, &args.after].map(|path| path.display().to_string());
    let diff = diff::compare(&before_run, &names[0], &after_run, &names[1]);
    match args.format {
        DiffFormat::Text => output::write_text(args.output.as_deref(), &diff::text(&diff, args.top))?,
        DiffFormat::Markdown => {
            let text = markdown::diff(&diff, args.top);
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        }
        DiffFormat::Json => {
            let json = diff::json(&diff)?;
            output::write_to(args.output.as_deref(), |out| Ok(out.write_all(json.as_bytes())?))?;
        }
    }
    Ok(Answer::Yes)
}
