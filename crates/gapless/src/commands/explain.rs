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
    let help = match explain::nearest(code) {
        Some(page) => format!("did you mean {}? `gapless explain` lists all codes", page.code),
        None => {
            let codes: Vec<&str> = explain::EXPLANATIONS.iter().map(|one| one.code).collect();
            format!("the codes are {}", codes.join(", "))
        }
    };
    Failure::new(format!("no finding has the code {code:?}"), help).into()
}
