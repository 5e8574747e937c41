//! One setting for all ranks: the ranks that it keeps from failing, and its saving on the worst one. A value with the
//! JSON contract `gapless.ranks-advice/1`, and its text. The caller replays the settings; this module chooses one.

use crate::text::table::{Align, Table};
use crate::text::{BOLD, CYAN, DIM, GREEN, RED, RESET, bytes, clean, percent, plural, width, wrap};
use serde::Serialize;
use std::fmt::Write;

pub const SCHEMA: &str = "gapless.ranks-advice/1";

/// A saving below this share of the worst peak is not worth a setting.
const LEAST_SHARE: f64 = 0.01;
/// Ranks that the text lists.
const LISTED: usize = 8;

/// The outcome of one setting on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub survives: bool,
    pub peak_reserved: u64,
}

/// A rank under its own settings and under each candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    pub rank: u32,
    pub device: u32,
    pub as_it_was: Outcome,
    /// In the order of the candidates.
    pub candidates: Vec<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A setting keeps ranks from failing, or lowers the worst peak.
    Helps,
    /// No rank fails, and no setting holds noticeably less.
    Fine,
    /// Ranks fail, and no setting that was tried prevents that on any of them.
    NoSetting,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RanksAdvice {
    pub schema: &'static str,
    pub path: String,
    /// The card; `null`: unlimited.
    pub capacity: Option<u64>,
    pub verdict: Verdict,
    pub sentence: String,
    /// The setting for all ranks; `null` if none helps.
    pub settings: Option<String>,
    /// The line for the environment.
    pub line: Option<String>,
    pub ranks: u64,
    /// Ranks that fail as they were set, and under the setting.
    pub fails_before: u64,
    pub fails_after: u64,
    pub worst: Option<Worst>,
    /// Every candidate, with its outcome over all ranks.
    pub tried: Vec<Candidate>,
    pub rows: Vec<Row>,
    /// Files that could not be read or replayed: rank and why.
    pub errors: Vec<Failed>,
}

/// The highest peaks before and after: of all ranks that survive both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Worst {
    pub rank_before: u32,
    pub before: u64,
    pub rank_after: u32,
    pub after: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    pub settings: String,
    pub survives: u64,
    pub worst_peak_reserved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub rank: u32,
    pub device: u32,
    pub before: Outcome,
    /// `null` if no setting helps.
    pub after: Option<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    pub rank: u32,
    pub error: String,
}

impl RanksAdvice {
    /// True if every rank gets to its end, with the setting or without.
    #[must_use]
    pub fn survives(&self) -> bool {
        self.fails_before == 0 || self.settings.is_some() && self.fails_after == 0
    }
}

/// Chooses among `candidates` by their outcomes: the one under which most ranks survive, then the lowest worst peak,
/// then the first. `line` gives the line for the environment.
#[must_use]
pub fn choose(
    path: &str,
    capacity: Option<u64>,
    candidates: &[String],
    tried: &[Tried],
    errors: Vec<Failed>,
    line: impl Fn(&str) -> String,
) -> RanksAdvice {
    let survivors = |of: &dyn Fn(&Tried) -> Outcome| tried.iter().filter(|t| of(t).survives).count() as u64;
    let worst = |of: &dyn Fn(&Tried) -> Outcome| {
        let alive = tried.iter().filter(|t| of(t).survives);
        alive
            .map(|t| (of(t).peak_reserved, t.rank))
            .max_by_key(|&(peak, rank)| (peak, std::cmp::Reverse(rank)))
    };
    let before: &dyn Fn(&Tried) -> Outcome = &|t| t.as_it_was;
    let (alive_before, worst_before) = (survivors(before), worst(before));
    let rows: Vec<Candidate> = candidates
        .iter()
        .enumerate()
        .map(|(i, settings)| {
            let of: &dyn Fn(&Tried) -> Outcome = &|t| t.candidates[i];
            Candidate {
                settings: settings.clone(),
                survives: survivors(of),
                worst_peak_reserved: worst(of).map_or(0, |(peak, _)| peak),
            }
        })
        .collect();
    let best = (0..rows.len())
        .min_by_key(|&i| (std::cmp::Reverse(rows[i].survives), rows[i].worst_peak_reserved, i));
    let helps = |i: &usize| {
        let row = &rows[*i];
        let held = worst_before.map_or(0, |(peak, _)| peak);
        let less = held.saturating_sub(row.worst_peak_reserved) as f64 > LEAST_SHARE * held as f64;
        row.survives > alive_before || row.survives == alive_before && less
    };
    let chosen = best.filter(helps);
    let all = tried.len() as u64;
    let (fails_before, fails_after) =
        (all - alive_before, all - chosen.map_or(alive_before, |i| rows[i].survives));
    let verdict = match chosen {
        Some(_) => Verdict::Helps,
        None if fails_before > 0 => Verdict::NoSetting,
        None => Verdict::Fine,
    };
    let after = chosen.and_then(|i| worst(&|t: &Tried| t.candidates[i]));
    let ends = worst_before.zip(after).map(|((before, rank_before), (after, rank_after))| Worst {
        rank_before,
        before,
        rank_after,
        after,
    });
    let settings = chosen.map(|i| candidates[i].clone());
    RanksAdvice {
        schema: SCHEMA,
        path: path.to_owned(),
        capacity,
        verdict,
        sentence: sentence(verdict, all, fails_before, fails_after, ends.as_ref()),
        line: settings.as_deref().map(line),
        settings,
        ranks: all,
        fails_before,
        fails_after,
        worst: ends,
        rows: tried
            .iter()
            .map(|t| Row {
                rank: t.rank,
                device: t.device,
                before: t.as_it_was,
                after: chosen.map(|i| t.candidates[i]),
            })
            .collect(),
        tried: rows,
        errors,
    }
}

fn sentence(verdict: Verdict, all: u64, before: u64, after: u64, worst: Option<&Worst>) -> String {
    match verdict {
        Verdict::Helps if after < before => format!(
            "one setting for all ranks keeps {} of {before} from failing; {after} of {all} still fail",
            before - after
        ),
        Verdict::Helps => {
            let saved = worst.map_or(0, |w| w.before.saturating_sub(w.after));
            let share = worst.map_or(0.0, |w| saved as f64 / w.before.max(1) as f64);
            format!(
                "one setting for all ranks lowers the worst peak reserved by {} ({})",
                bytes(saved),
                percent(share)
            )
        }
        Verdict::Fine => {
            "every rank gets to its end, and no setting lowers the worst peak by 1 % or more".to_owned()
        }
        Verdict::NoSetting => {
            format!(
                "{before} of {all} ranks fail on this card, and no setting that was tried keeps any from it"
            )
        }
    }
}

/// For programs.
///
/// # Errors
/// Never for advice; serde's signature.
pub fn json(advice: &RanksAdvice) -> serde_json::Result<String> {
    serde_json::to_string_pretty(advice).map(|text| text + "\n")
}

/// For a terminal.
#[must_use]
pub fn text(advice: &RanksAdvice) -> String {
    let mut out = String::new();
    let card = advice.capacity.map_or_else(String::new, |card| format!(" · a card of {}", bytes(card)));
    let _ = writeln!(out, "{BOLD}{}{RESET}", clean(&advice.path));
    let _ = writeln!(out, "{DIM}{}{card}{RESET}\n", plural(advice.ranks, "rank"));
    let style = if advice.survives() { GREEN } else { RED };
    for line in wrap(&advice.sentence, width() - 2) {
        let _ = writeln!(out, "  {style}{line}{RESET}");
    }
    if let Some(line) = &advice.line {
        let _ = writeln!(out, "\n  {CYAN}{}{RESET}", clean(line));
    }
    if let Some(worst) = &advice.worst {
        let mut table = Table::new(&[Align::Left, Align::Right, Align::Left, Align::Right, Align::Left]);
        let rank = |rank: u32| format!("rank {rank}");
        table.row(DIM, ["", "as it was", "", "with it", ""].map(str::to_owned).to_vec());
        table.row(
            "",
            vec![
                "worst peak reserved".to_owned(),
                bytes(worst.before),
                rank(worst.rank_before),
                bytes(worst.after),
                rank(worst.rank_after),
            ],
        );
        let alive = |fails: u64| format!("{} of {}", advice.ranks - fails, advice.ranks);
        table.row(
            "",
            vec![
                "ranks that survive".to_owned(),
                alive(advice.fails_before),
                String::new(),
                alive(advice.fails_after),
            ],
        );
        let _ = writeln!(out);
        table.render(&mut out, "  ");
    }
    let failing: Vec<&Row> =
        advice.rows.iter().filter(|row| !row.after.unwrap_or(row.before).survives).collect();
    if !failing.is_empty() {
        let ranks: Vec<u32> = failing.iter().map(|row| row.rank).collect();
        let _ = writeln!(out, "\n  {RED}still failing{RESET}  ranks {}", super::text::ranges(&ranks));
    }
    for failed in advice.errors.iter().take(LISTED) {
        let _ = writeln!(out, "\n  {RED}rank {} was not replayed{RESET}", failed.rank);
        for line in wrap(&clean(&failed.error), width() - 4) {
            let _ = writeln!(out, "    {line}");
        }
    }
    if advice.errors.len() > LISTED {
        let _ = writeln!(out, "  {DIM}and {} more{RESET}", advice.errors.len() - LISTED);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(peak_reserved: u64) -> Outcome {
        Outcome { survives: true, peak_reserved }
    }

    fn tried(rank: u32, as_it_was: Outcome, candidates: &[Outcome]) -> Tried {
        Tried { rank, device: 0, as_it_was, candidates: candidates.to_vec() }
    }

    fn chosen(tried: &[Tried]) -> RanksAdvice {
        let candidates = ["a:1".to_owned(), "b:2".to_owned()];
        choose("run", None, &candidates, tried, Vec::new(), |conf| format!("export X={conf}"))
    }

    #[test]
    fn the_setting_that_saves_most_ranks_wins_and_then_the_lowest_worst_peak() {
        let failed = Outcome::default();
        let advice = chosen(&[
            tried(0, failed, &[alive(900), alive(950)]),
            tried(1, failed, &[failed, alive(940)]),
            tried(2, alive(800), &[alive(700), alive(930)]),
        ]);
        assert_eq!(advice.settings.as_deref(), Some("b:2"));
        assert_eq!((advice.fails_before, advice.fails_after, advice.verdict), (2, 0, Verdict::Helps));
        let advice = chosen(&[tried(0, alive(1000), &[alive(900), alive(800)])]);
        assert_eq!(advice.line.as_deref(), Some("export X=b:2"));
        assert!(advice.survives());
    }

    #[test]
    fn a_setting_that_saves_nothing_is_not_advised() {
        let advice = chosen(&[tried(0, alive(1000), &[alive(995), alive(1200)])]);
        assert_eq!((advice.verdict, advice.settings), (Verdict::Fine, None));
        let advice = chosen(&[tried(0, Outcome::default(), &[Outcome::default(); 2])]);
        assert_eq!(advice.verdict, Verdict::NoSetting);
        assert!(!advice.survives());
    }
}
