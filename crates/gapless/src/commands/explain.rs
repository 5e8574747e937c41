//! `gapless explain`: the meaning of a finding and the next step.

use crate::Answer;
use crate::cli::ExplainArgs;
use crate::failure::Failure;
use crate::near::{alternatives, near};
use crate::output;
use anyhow::Result;
use gapless_report::explain::{self, Explanation};
use gapless_report::text;

pub(crate) fn run(args: &ExplainArgs) -> Result<Answer> {
    let asked = args.words.join(" ");
    let shown = if asked.trim().is_empty() {
        explain::EXPLANATIONS.iter().map(|one| format!("{}  {}\n", one.code, one.title())).collect()
    } else {
        explain::shown(found(&asked)?.text, text::width())
    };
    output::write_text(None, &shown)?;
    Ok(Answer::Yes)
}

/// The finding with this code, or the one with this name.
fn found(asked: &str) -> Result<&'static Explanation> {
    if let Some(found) = explain::find(asked) {
        return Ok(found);
    }
    let all = explain::search(asked);
    if let [only] = all.as_slice() {
        return Ok(only);
    }
    if let Some(named) = all.iter().find(|one| one.title().eq_ignore_ascii_case(asked)) {
        return Ok(named);
    }
    if !all.is_empty() {
        let help = all.iter().map(|one| format!("{} ({})", one.code, one.title())).collect::<Vec<_>>();
        let what = format!("{} findings have to do with {asked:?}", all.len());
        return Err(Failure::new(what, format!("give one of {}", help.join(", "))).into());
    }
    let help = match explain::nearest(asked) {
        Some(page) => format!("did you mean {}? `gapless explain` lists all codes", page.code),
        None => unknown(asked),
    };
    Err(Failure::new(format!("no finding has the code or the name {asked:?}"), help).into())
}

/// Words of titles that are near the user's words, or all codes.
fn unknown(asked: &str) -> String {
    let titles = explain::EXPLANATIONS.iter().map(Explanation::title);
    let mut words: Vec<&str> = titles.flat_map(str::split_whitespace).filter(|word| word.len() > 3).collect();
    words.sort_unstable();
    words.dedup();
    match near(asked, words.iter().copied()).as_slice() {
        [] => {
            let codes: Vec<&str> = explain::EXPLANATIONS.iter().map(|one| one.code).collect();
            format!("the codes are {}", codes.join(", "))
        }
        found => format!("did you mean {}? `gapless explain` lists all findings", alternatives(found)),
    }
}
