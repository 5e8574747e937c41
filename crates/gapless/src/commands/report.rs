//! `gapless report`: the memory of a run, on one rank or on all.

mod many;
mod watch;

use crate::cli::report::{Branches, ReportArgs, ReportFormat};
use crate::commands::advise;
use crate::failure::Failure;
use crate::ranks::Inputs;
use crate::{Answer, load, opener, output};
use anyhow::Result;
use gapless_report::{Analysis, Report, markdown, text};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &ReportArgs) -> Result<Answer> {
    if args.watch && args.rank.is_none() && !matches!(args.files.as_slice(), [one] if !one.is_dir()) {
        return Err(Failure::new("--watch follows one file", "name one file, or add --rank N").into());
    }
    if args.tree.is_some() && args.format != ReportFormat::Text {
        let what = "--tree is text, and the name of the -o file asks for another format";
        return Err(Failure::new(what, "name a file that ends in .txt").into());
    }
    let target = Target::of(args)?;
    // A file that is watched may not be there yet.
    if let ([file], true, None) = (args.files.as_slice(), args.watch, args.rank) {
        watch::run(args, file, &target)?;
        return Ok(Answer::Yes);
    }
    let inputs = Inputs::of(&args.files, args.output.as_deref())?;
    match (args.rank, inputs.files.as_slice()) {
        (Some(rank), _) if args.watch => {
            watch::run(args, inputs.rank(rank)?, &target)?;
            Ok(Answer::Yes)
        }
        (Some(rank), _) => one(args, inputs.rank(rank)?, &target),
        (None, [only]) if !inputs.many => one(args, &only.path, &target),
        _ => many::run(args, &inputs, &target),
    }
}

fn one(args: &ReportArgs, file: &Path, target: &Target) -> Result<Answer> {
    crate::small_pages::take();
    let (trace, ahead) = load::trace_ahead_of(file, args.device)?;
    let analysis = load::analyse_followed(&trace, ahead, file)?;
    if let Some(branches) = args.tree {
        let branches = match branches {
            Branches::Stacks => text::Branches::Stacks,
            Branches::Modules => text::Branches::Modules,
        };
        let tree = text::render_tree(&analysis, &file.display().to_string(), branches);
        output::write_text(args.output.as_deref(), &tree)?;
        return Ok(Answer::Yes);
    }
    let report = report(args, file, &analysis)?;
    target.write(&analysis, &report)?;
    target.tell();
    // The process ends here, so freeing a hundred megabytes of columns would only cost time.
    std::mem::forget(analysis);
    std::mem::forget(trace);
    Ok(Answer::Yes)
}

fn report(args: &ReportArgs, file: &Path, analysis: &Analysis<'_>) -> Result<Report> {
    let path = file.display().to_string();
    if args.advise {
        let answers = advise::answers(analysis, &path)?;
        return Ok(analysis.advised_report(&path, args.top, answers));
    }
    Ok(analysis.report(&path, args.top))
}

/// The destination and the format of a report.
struct Target {
    format: ReportFormat,
    /// `None`: standard output.
    path: Option<PathBuf>,
    /// True if the program chose the file's name, which it then has to print.
    named: bool,
    open: bool,
}

impl Target {
    fn of(args: &ReportArgs) -> Result<Target> {
        let format = match args.format {
            ReportFormat::Text if args.open => ReportFormat::Html,
            format => format,
        };
        if args.open && format != ReportFormat::Html {
            return Err(Failure::new(
                "--open shows the HTML page, and --format or the name of the -o file asks for another format",
                "omit --format, and name a file that ends in .html",
            )
            .into());
        }
        let to_stdout = args.output.as_ref().is_none_or(|path| path.as_os_str() == "-");
        if args.open && args.output.is_some() && to_stdout {
            return Err(Failure::new(
                "--open cannot open standard output",
                "name a file with -o, or omit -o",
            )
            .into());
        }
        // A page is named after the trace, or "ranks".
        let source = match args.files.as_slice() {
            [one] => one.as_path(),
            _ => Path::new("ranks"),
        };
        // HTML in a terminal cannot be read, so it goes to a file.
        let page = format == ReportFormat::Html;
        let named = args.output.is_none() && page && (args.open || std::io::stdout().is_terminal());
        let path = match (&args.output, named) {
            (Some(path), _) => Some(path.clone()),
            (None, true) if args.open => Some(page_to_open(source)),
            (None, true) => Some(page_name(source)),
            (None, false) => None,
        };
        if let Some(path) = path.as_ref().filter(|_| named) {
            let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
            output::refuse_input_as_output(path, &inputs)?;
        }
        Ok(Target { format, path, named, open: args.open })
    }

    fn write(&self, analysis: &Analysis<'_>, report: &Report) -> Result<()> {
        let path = self.path.as_deref();
        match self.format {
            ReportFormat::Text => output::write_text(path, &text::render(report)),
            ReportFormat::Json => plain(path, &gapless_report::json(report)?),
            ReportFormat::Markdown => plain(path, &markdown::report(report)),
            ReportFormat::Html => output::write_to(path, |out| write_page(out, analysis, report)),
        }
    }

    /// Names the file to the user, and opens it if the user asked for that.
    fn tell(&self) {
        let Some(path) = &self.path else { return };
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        if !self.open {
            if self.named {
                eprintln!("wrote {}", path.display());
            }
            return;
        }
        match opener::open(&absolute) {
            Ok(()) => eprintln!("wrote {} and opened it", absolute.display()),
            Err(why) => eprintln!(
                "wrote {}; no program here could open it ({why}): open it in a browser",
                absolute.display()
            ),
        }
    }
}

fn plain(path: Option<&Path>, text: &str) -> Result<()> {
    output::write_to(path, |out| Ok(out.write_all(text.as_bytes())?))
}

/// Writes the HTML report.
pub(crate) fn write_page(out: &mut dyn Write, analysis: &Analysis<'_>, report: &Report) -> Result<()> {
    let json = serde_json::to_string(report)?;
    let path = &report.source.path;
    let title = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path);
    Ok(gapless_page::write(out, &analysis.page(title, &json))?)
}

/// `run.pickle.gz` becomes `run.html`, in the current folder.
pub(crate) fn page_name(trace: &Path) -> PathBuf {
    let name = trace.file_name().map_or_else(|| "report".to_owned(), |n| n.to_string_lossy().into_owned());
    let stem = name.split('.').find(|part| !part.is_empty() && *part != "-").unwrap_or("report");
    PathBuf::from(format!("{stem}.html"))
}

/// The same if the current folder can be written to; else a file of this process in the temporary folder.
fn page_to_open(trace: &Path) -> PathBuf {
    let name = page_name(trace);
    if trace.as_os_str() != "-" && output::can_create_beside(&name) {
        return name;
    }
    let stem = name.file_stem().map_or_else(|| "report".into(), |stem| stem.to_string_lossy());
    std::env::temp_dir().join(format!("gapless-{stem}-{}.html", std::process::id()))
}
