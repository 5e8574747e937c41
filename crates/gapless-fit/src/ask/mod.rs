//! Answers whether a run fits, and if not, which plans do: one question, one answer.
//!
//! [`Asked`] has the user's settings, [`Question`] those and everything that was chosen for them, [`Answer`] an
//! estimate, plans that fit if it does not, and the largest batch if that was wanted. The numbers come from `eager` and
//! `search`. The decisions between them are here, with every constant in [`policy`]. Nothing is printed:
//! `gapless-report` has the contract and the words.

mod asked;
mod error;
mod estimate;
mod exact;
mod files;
mod kept;
mod plans;
pub mod policy;
mod question;
mod refuse;
mod row;
mod serving;
mod shape;
mod streamed;
mod why;
mod words;

pub use asked::{Adapters, Asked, Degrees, Emit, StreamBudget};
pub use error::AskError;
pub use estimate::{Estimate, Method, PeakAt};
pub use files::files;
pub use question::{Given, Question};
pub use row::{Plans, Row, Share};
pub use shape::Shape;
pub use streamed::{Streamed, StreamedPass};
pub use why::terms;

use crate::eager::{Recomputed, Run};
use crate::model::Architecture;
use crate::search::space::Config;
use crate::settings::Checkpointing;
use crate::tune::{self, LargestBatch};

/// Wishes beside the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Plans even if the run fits.
    pub optimize: bool,
    /// The largest batch that fits.
    pub max_batch: bool,
    /// The most plans to give; at least one is given if there is one.
    pub top: usize,
    /// Only plans that this target can realise.
    pub emit: Option<Emit>,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes { optimize: false, max_batch: false, top: 5, emit: None }
    }
}

/// All that was found out.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Of the run that was asked for, of the largest batch, or of the first plan that keeps the recipe. `None` if only
    /// GPUs were counted and no layout of the recipe fits.
    pub estimate: Option<Estimate>,
    /// `None` if no plans were looked for.
    pub plans: Option<Plans>,
    /// `None` if it was not looked for; `None` within if not even a batch of 1 fits.
    pub largest: Option<Option<LargestBatch>>,
    /// True if the run that was asked for fits: with its own recipe, below its device after its error bar, [`RESERVE`]
    /// free.
    ///
    /// [`RESERVE`]: crate::simulated::RESERVE
    pub fits: bool,
    /// The configuration of the estimate, if it is not simulated.
    pub config: Option<Config>,
    /// True if the estimate is the first plan's.
    pub is_plan: bool,
    /// Of a pass whose weights stream from the host; the estimate is that pass's.
    pub streamed: Option<Streamed>,
}

/// Answers `q`.
///
/// # Errors
/// When the model's steps cannot be followed, or when the question cannot grant a wish.
pub fn ask(q: &Question, wishes: &Wishes) -> Result<Answer, AskError> {
    let mut found = Answer::default();
    let serves = !q.trains();
    if q.stream.is_some() && (wishes.max_batch || wishes.optimize) {
        let flag = if wishes.max_batch { "--max-batch" } else { "--optimize" };
        let help = "leave one of them out; `--stream SIZE` is answered for any --batch";
        return Err(AskError::new(format!("{flag} looks for plans with all weights on the card"), help));
    }
    if q.stream.is_some() && !q.is_simulated() {
        let what = format!("--stream is not answered for --precision {}", q.run.precision.name());
        return Err(AskError::new(what, "give --precision fp32, bf16 or fp16"));
    }
    if wishes.max_batch {
        let largest = largest_batch(q)?;
        found.fits = largest.is_some();
        found.estimate =
            largest.as_ref().map(|l| Estimate::of(&at_batch(q, l.batch), l.simulated.clone(), None));
        found.largest = Some(largest);
        if found.fits {
            return Ok(found);
        }
    }
    if serves && (q.cluster.gpus() > 1 || wishes.emit.is_some() || q.is_paged()) {
        let plans = serving::serve(q, wishes.top)?;
        found.take_first(&plans);
        found.plans = Some(plans);
        return Ok(found);
    }
    if let Some(budget) = q.stream {
        let (estimate, streamed) = streamed::within(q, budget, Estimate::simulated(q)?);
        found.fits = estimate.verdict.fits();
        (found.estimate, found.streamed) = (Some(estimate), Some(streamed));
        return Ok(found);
    }
    if q.is_simulated() {
        let estimate = Estimate::simulated(q)?;
        found.fits = estimate.verdict.fits();
        found.estimate = Some(estimate);
    } else if q.is_laid_out() {
        let profile = plans::profile(q)?;
        let config = plans::given(q, &profile)?;
        let account = plans::account(q, &profile, &config);
        let estimate = Estimate::closed(q, &config, &account, profile.parameters(), Vec::new());
        found.fits = estimate.verdict.fits();
        found.estimate = Some(estimate);
        found.config = Some(config);
    }
    // There is nothing to vary in an exported graph.
    if found.estimate.as_ref().is_some_and(|e| !e.is_countable()) {
        return Err(refuse::beyond());
    }
    if found.fits && !wishes.optimize || q.is_graph() {
        return Ok(found);
    }
    let plans = if serves {
        if !matches!(q.architecture, Architecture::Decoder(_)) {
            return Ok(found);
        }
        let mut plans = serving::serve(q, wishes.top)?;
        let run = found.estimate.as_ref().and_then(|e| e.simulated.as_ref());
        if let Some(run) = run.filter(|_| plans.rows.is_empty()) {
            exact::at_least(&mut plans, q, run);
        }
        plans
    } else {
        let target = match wishes.emit {
            Some(Emit::Train(target)) => Some(target),
            Some(Emit::Serve) | None => None,
        };
        plans::train(q, target, wishes.top)?
    };
    if found.fits && !plans.keeps_recipe {
        // What was asked fits, and no plan of its recipe is better.
        return Ok(found);
    }
    if found.estimate.is_none() {
        // Only the number of GPUs was given: the answer is the best layout's.
        found.take_first(&plans);
    }
    found.plans = Some(plans);
    Ok(found)
}

impl Answer {
    /// The plan that fits if the run that was asked for does not.
    #[must_use]
    pub fn fits_with(&self) -> Option<&Row> {
        if self.fits { None } else { self.plans.as_ref()?.rows.first() }
    }

    /// Takes the first plan's estimate as the answer's own, if that plan keeps the recipe.
    fn take_first(&mut self, plans: &Plans) {
        if !plans.keeps_recipe {
            return;
        }
        self.fits = !plans.rows.is_empty();
        self.estimate = plans.rows.first().and_then(|row| row.estimate.clone());
        self.config = plans.rows.first().and_then(|row| row.config);
        self.is_plan = self.fits;
    }
}

/// The largest batch of `q` that fits. Every block is recomputed if checkpointing was not given.
fn largest_batch(q: &Question) -> Result<Option<LargestBatch>, AskError> {
    if !q.is_simulated() || q.is_paged() {
        return Err(AskError::new(
            "--max-batch is found by simulating one GPU",
            "leave out the degrees and offloading; every plan of a search names its own largest batch",
        ));
    }
    if q.is_graph() {
        return Err(AskError::new(
            "--max-batch needs a batch to vary, and an exported graph has its shapes",
            "export it with other shapes, or give its config.json",
        ));
    }
    let mut run = q.run.clone();
    if q.checkpointing == Checkpointing::Optimal {
        run = Run { recomputed: Recomputed::All, ..run };
    }
    tune::largest_batch(&q.architecture, &run, q.gpu(), q.memory())
        .map_err(|error| AskError::build(&q.path, &error))
}

/// `q` with another batch.
#[must_use]
pub fn at_batch(q: &Question, batch: u64) -> Question {
    let mut q = q.clone();
    q.run.batch = batch;
    q
}

#[cfg(test)]
mod tests;
