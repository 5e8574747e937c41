//! Errors in a recorded step.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the step is not valid JSON of a recorded step: {0}")]
    Json(#[from] serde_json::Error),
    #[error("schema {0:?} is not known: this version reads \"gapless.step/1\"; update gapless")]
    Schema(String),
    #[error("operator {op} names value {value}, but the step has {len} values")]
    NoValue { op: usize, value: u32, len: usize },
    #[error("value {value} has {what} {event}, but the step has {len} operators")]
    NoEvent { value: usize, what: &'static str, event: u32, len: usize },
    #[error("value {value} is an input of operator {op}, which runs before the value is made")]
    Order { op: usize, value: u32 },
    #[error("a call is in scope {scope}, but the step has {scopes} scopes")]
    Scope { scope: u32, scopes: usize },
    #[error("operator {op} has the cost {cost}: a number of microseconds, 0 or more, is needed")]
    Cost { op: usize, cost: f64 },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
