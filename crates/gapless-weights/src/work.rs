//! How a verb works: with how many threads, and how fast it may read.

use crate::pace::Pace;
use std::sync::Arc;

/// A number of threads is enough if there is no limit.
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
