//! `gapless man`: manual pages, from the same definition as `--help`.

use crate::Answer;
use crate::cli::{self, ManArgs};
use crate::output;
use anyhow::{Context, Result, bail};

pub(crate) fn run(args: &ManArgs) -> Result<Answer> {
    let mut gapless = cli::command();
    gapless.build();
    if let Some(folder) = &args.all {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let verbs = gapless.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set());
        for page in std::iter::once(&gapless).chain(verbs).map(page) {
            let path = folder.join(page.get_filename());
            let mut text = Vec::new();
            page.render(&mut text)?;
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        return Ok(Answer::Yes);
    }
    let command = match args.command.as_deref() {
        None => &gapless,
        Some(name) => match gapless.find_subcommand(name) {
            Some(command) => command,
            None => bail!("gapless has no command {name:?}: `gapless help` lists them"),
        },
    };
    let mut text = Vec::new();
    page(command).render(&mut text)?;
    output::write_to(None, |out| Ok(out.write_all(&text)?))?;
    Ok(Answer::Yes)
}

/// The page of one command. A command that was built has a display name, gapless-report, as git's pages have.
fn page(command: &clap::Command) -> clap_mangen::Man {
    clap_mangen::Man::new(command.clone())
}
