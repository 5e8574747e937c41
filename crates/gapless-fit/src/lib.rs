//! Will it fit, and how do I make it fit: from a model's description alone, without a GPU.
//!
//! `model` describes a model, `read` gets one from a file or a name, `eager` runs a step of it operator by operator as
//! PyTorch's eager execution allocates and frees, and leaves a trace. `account` says what is alive at the peak.
//! `formulas` are the closed forms that check it, `checkpoint` chooses the blocks to recompute, `search` finds the
//! cheapest configuration that fits, `ask` puts these together: a question in, an answer out.

pub mod account;
pub mod ask;
pub mod checkpoint;
pub mod eager;
pub mod emit;
pub mod formulas;
pub mod graph;
pub mod hardware;
pub mod model;
pub mod parameters;
pub mod profiled;
pub mod read;
pub mod search;
pub mod settings;
pub mod simulated;
pub mod simulated_blocks;
pub mod stored;
pub mod timeline;
pub mod tune;
pub mod weigh;

mod models;

pub use ask::{Answer, Asked, Question, Wishes, ask};
pub use models::BuildError;
