//! Instances of `gapless-problems` for the tests inside this crate. Generators use the build of this crate that ships.
//! Its types are not those of the build under test, so buffers are made anew.

use crate::problem::{Buffer, Problem};
use gapless_problems::generate;

macro_rules! again {
    ($made:expr) => {{
        let made = $made;
        let buffers = made.buffers().iter();
        Problem::new(buffers.map(|b| Buffer::new(b.lifetime.start, b.lifetime.end, b.size.0)).collect())
            .expect("a problem once is one twice")
    }};
}

pub(crate) fn heavy_tailed(count: usize, shape: f64, shortest: f64, seed: u64) -> Problem {
    again!(generate::heavy_tailed(count, shape, shortest, seed))
}

pub(crate) fn training(count: usize, per_step: usize, seed: u64) -> Problem {
    again!(generate::training(count, per_step, seed))
}

pub(crate) fn guillotine(count: usize, time: i64, memory: u64, seed: u64) -> Problem {
    again!(generate::guillotine(count, time, memory, seed))
}
