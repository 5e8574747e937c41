//! A recorded training step: operators in the order in which they ran, and the values (storages) that they made.
//!
//! Moments are operator numbers. A value's *gap* is [natural, need): only autograd holds it, and backward has not asked
//! for it. Decisions are about gaps. Invariant (checked by [`Step::check`]): inputs exist before their operators run.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "gapless.step/1";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub schema: String,
    pub ops: Vec<Op>,
    pub values: Vec<Value>,
    /// When backward asks: (operator that runs next, value), in order.
    pub asks: Vec<(u32, u32)>,
    /// The step's time as measured without the recorder, microseconds.
    pub time_us: f64,
    /// Added to the cost of each recomputed operator: what it takes to start it, microseconds.
    #[serde(default)]
    pub launch_us: f64,
    /// The cost of watching forward to the program's own thread, if a plan has calls to watch.
    #[serde(default)]
    pub watch: Watch,
}

/// The executor watches the calls of scopes (blocks) in which calls are planned. That takes time of the thread that
/// launches the work, which counts as far as the device waits for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Watch {
    /// How long the program's thread and the device took for forward, microseconds.
    pub thread_us: f64,
    pub device_us: f64,
    /// A planned call, and by scope all its calls.
    pub call_us: f64,
    pub scope_us: Vec<f64>,
    /// By call its scope.
    pub scope_of: Vec<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Op {
    pub name: String,
    /// The module that it runs in, with `*` for the number of a block.
    #[serde(default)]
    pub place: String,
    /// Time on the device, microseconds.
    pub cost: f64,
    /// Values that it reads and that this step made.
    pub ins: Vec<u32>,
    pub outs: Vec<u32>,
    /// The call of the program that it belongs to. Sources stay until the last recomputation of their call.
    pub call: Option<u32>,
    /// It may run a second time: functional, and its arguments can be had again.
    pub again: bool,
    /// Bytes allocated when it began, and the most while it ran, with everything kept.
    pub before: u64,
    pub crest: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    pub size: u64,
    /// The operator that made it.
    pub birth: u32,
    /// From here on only autograd holds it; for a value that autograd does not save, its end.
    pub natural: u32,
    /// Nothing holds it any more.
    pub death: u32,
    /// Backward asks for it first here.
    pub need: Option<u32>,
    /// Autograd saves it, and the executor can hand it back later.
    pub drop: bool,
    /// The executor can hold it as a source although autograd does not.
    pub hold: bool,
    /// Equal in values that play the same part in blocks that repeat.
    pub alike: u32,
}

impl Step {
    pub fn read(text: &[u8]) -> Result<Step> {
        let step: Step = serde_json::from_slice(text)?;
        step.check()?;
        Ok(step)
    }

    /// The memory in use at the highest moment, with everything kept.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.ops.iter().map(|op| op.crest.max(op.before)).max().unwrap_or(0)
    }

    /// The cost of running an operator a second time.
    #[must_use]
    pub fn cost(&self, op: u32) -> f64 {
        self.ops[op as usize].cost + self.launch_us
    }

    /// True if a value may leave the device in its gap.
    #[must_use]
    pub fn can_drop(&self, v: u32) -> bool {
        let value = &self.values[v as usize];
        value.drop
            && value.natural < value.need.unwrap_or(value.death)
            && self.ops[value.birth as usize].again
    }

    pub fn check(&self) -> Result<()> {
        if self.schema != SCHEMA {
            return Err(Error::Schema(self.schema.clone()));
        }
        let (len, last) = (self.values.len(), self.ops.len());
        for (n, op) in self.ops.iter().enumerate() {
            if !(op.cost.is_finite() && op.cost >= 0.0) {
                return Err(Error::Cost { op: n, cost: op.cost });
            }
            for &value in op.ins.iter().chain(&op.outs) {
                if value as usize >= len {
                    return Err(Error::NoValue { op: n, value, len });
                }
            }
            for &value in &op.ins {
                let birth = self.values[value as usize].birth as usize;
                if birth > n || birth == n && !op.outs.contains(&value) {
                    return Err(Error::Order { op: n, value });
                }
            }
        }
        for (n, value) in self.values.iter().enumerate() {
            let events = [("birth", value.birth), ("natural", value.natural), ("death", value.death)];
            for (what, event) in events.into_iter().chain(value.need.map(|event| ("need", event))) {
                if event as usize > last || what == "birth" && event as usize == last {
                    return Err(Error::NoEvent { value: n, what, event, len: last });
                }
            }
        }
        let scopes = self.watch.scope_us.len();
        if let Some(&scope) = self.watch.scope_of.iter().find(|&&scope| scope as usize >= scopes) {
            return Err(Error::Scope { scope, scopes });
        }
        for &(event, value) in &self.asks {
            if value as usize >= len {
                return Err(Error::NoValue { op: event as usize, value, len });
            }
            if event as usize > last {
                return Err(Error::NoEvent { value: value as usize, what: "a need at", event, len: last });
            }
        }
        Ok(())
    }
}
