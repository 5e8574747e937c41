//! Why a question has no answer.

use crate::models::BuildError;
use crate::search::SearchError;

/// A question that contradicts itself, or that nothing can answer: the cause, and the next step. Settings are called by
/// the flags of `gapless fit`, which users know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct AskError {
    pub what: String,
    pub help: String,
    /// True if `gapless estimate`, which runs the model on torch itself, may answer instead.
    pub estimable: bool,
}

impl AskError {
    pub(super) fn new(what: impl Into<String>, help: impl Into<String>) -> AskError {
        AskError { what: what.into(), help: help.into(), estimable: false }
    }

    /// The same for a model that `gapless estimate` can run.
    pub(super) fn estimable(self) -> AskError {
        AskError { estimable: true, ..self }
    }

    /// A model whose steps cannot be followed.
    pub(super) fn build(path: &str, error: &BuildError) -> AskError {
        AskError::new(
            format!("{path}: {error}"),
            match error {
                BuildError::Unsupported(_) => {
                    "give the model's config.json, or the name of a built-in model, to have its steps followed"
                }
                BuildError::Shape(_) => "check the numbers of the model's configuration",
            },
        )
    }

    /// The same for a search of plans.
    pub(super) fn planned(path: &str, error: &BuildError) -> AskError {
        AskError::new(
            format!("{path}: {error}"),
            "give the model's config.json, or the name of a built-in model",
        )
    }

    /// Degrees that do not divide, or a space with nothing in it.
    pub(super) fn search(error: &SearchError) -> AskError {
        AskError::new(error.to_string(), "`gapless fit --help` shows the degrees and what they divide")
    }
}
