//! Which buffers may take the place of which.

use crate::error::{Error, Result};
use crate::problem::{Lifetime, Problem};

/// For each buffer the one whose place it may take. Invariants, for b that may take a's: a begins before b, ends not
/// before b begins and not after b ends; neither has gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares(Vec<Option<usize>>);

impl Shares {
    pub fn new(problem: &Problem, shares: Vec<Option<usize>>) -> Result<Shares> {
        if shares.len() != problem.len() {
            let what = format!("{} entries for {} buffers", shares.len(), problem.len());
            return Err(Error::Shares { what });
        }
        let links = shares.iter().enumerate().filter_map(|(taker, giver)| Some((taker, (*giver)?)));
        for (taker, giver) in links {
            let wrong = |what: String| Error::Buffer { id: problem.name(taker), what };
            let Some(from) = problem.buffers().get(giver) else {
                return Err(wrong(format!(
                    "it shares the place of buffer number {giver}, which there is not"
                )));
            };
            let name = problem.name(giver);
            let (to, from_life) = (&problem.buffers()[taker], from.lifetime);
            if !to.gaps.is_empty() || !from.gaps.is_empty() {
                return Err(wrong(format!("it shares the place of {name}, and one of the two has gaps")));
            }
            let Lifetime { start, end } = to.lifetime;
            if !(from_life.start < start && start <= from_life.end && from_life.end <= end) {
                let what = format!(
                    "it is alive in {start}-{end} and cannot take the place of {name}, alive in {}-{}: that one must \
                     begin before it, and end while it is alive",
                    from_life.start, from_life.end
                );
                return Err(wrong(what));
            }
        }
        Ok(Shares(shares))
    }

    /// The buffer whose place this one may take.
    #[must_use]
    pub fn of(&self, buffer: usize) -> Option<usize> {
        self.0.get(buffer).copied().flatten()
    }

    /// The number of buffers.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takers and givers.
    pub(super) fn links(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().enumerate().filter_map(|(taker, giver)| Some((taker, (*giver)?)))
    }
}
