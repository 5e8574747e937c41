//! The resources of a verb: its threads, and the limit on the speed of reading.

use crate::pace::Pace;
use std::sync::Arc;

/// A number of threads converts into it, without a limit.
#[derive(Clone, Debug)]
pub struct Work {
    pub threads: usize,
    pub pace: Option<Arc<Pace>>,
}

impl From<usize> for Work {
    fn from(threads: usize) -> Work {
        Work { threads, pace: None }
    }
}
