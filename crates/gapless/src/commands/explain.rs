//! `gapless explain`: what a finding means, and what to do.

use crate::Answer;
use crate::cli::ExplainArgs;
use crate::failure::Failure;
use crate::output;
use anyhow::Result;
use gapless_report::explain;

pub(crate) fn run(args: &ExplainArgs) -> Result<Answer> {
    let text = match &args.code {
        None => explain::EXPLANATIONS.iter().map(|one| format!("{}  {}\n", one.code, one.title())).collect(),
        Some(code) => match explain::find(code) {
            Some(found) => found.text.to_owned(),
            None => return Err(unknown(code)),
        },
    };
    output::write_to(None, |out| Ok(out.write_all(text.as_bytes())?))?;
    Ok(Answer::Yes)
}

fn unknown(code: &str) -> anyhow::Error {
    let nearest = explain::nearest(code).map_or(String::new(), |p| format!("did you mean {}? ", p.code));
    Failure::new(
        format!("no finding has the code {code:?}"),
        format!("{nearest}`gapless explain` lists all codes"),
    )
    .into()
}
