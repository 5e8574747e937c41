//! The words of this crate.
//!
//! * A *node* is a machine with CPUs, host memory and GPUs of one model.
//! * A *request* is a pod's resources: whole GPUs, a *share* of one GPU in thousandths, or bytes of GPU memory.
//! * *Thousandths* count GPUs: a whole GPU of any model has 1,000.
//! * *Units* are the ledger's amounts on one GPU: bytes if the size of its memory is known, else thousandths.
//! * A *rank* orders nodes. Of nodes with equal scores the one with the lowest rank wins.

use crate::error::{Error, Result};

/// The thousandths of a whole GPU.
pub const WHOLE: u32 = 1000;
/// The most pods of a node that gives no other number.
pub const MAX_PODS: u32 = 1001;
/// The most GPUs of a node.
pub const MAX_GPUS: u32 = 1024;
/// The most CPUs of a node, in thousandths, and the most bytes of its memory: sums over a million nodes fit in 64 bits.
pub const MAX_CPU: u64 = 1 << 40;
pub const MAX_MEMORY: u64 = 1 << 50;

/// The most bytes of the models that a request accepts. The policy remembers thousands of requests.
pub const MAX_MODELS: usize = 1024;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Thousandths of CPUs.
    pub cpu_milli: u64,
    /// Bytes of host memory.
    pub memory: u64,
    pub gpus: u32,
    /// The model of its GPUs; empty if it has none.
    pub model: String,
    /// Bytes of memory of each GPU, if known.
    pub gpu_memory: Option<u64>,
    pub max_pods: u32,
}

impl Node {
    /// The units of one of its GPUs.
    pub fn units(&self) -> u64 {
        self.gpu_memory.unwrap_or(u64::from(WHOLE))
    }

    /// An error if a quantity is invalid.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.name.is_empty() {
            return Err("the node has no name".to_owned());
        }
        if self.gpus > MAX_GPUS {
            return Err(format!("{} GPUs on one node; the most is {MAX_GPUS}", self.gpus));
        }
        if self.cpu_milli > MAX_CPU {
            return Err(format!("{} thousandths of CPUs; the most is {MAX_CPU}", self.cpu_milli));
        }
        if self.memory > MAX_MEMORY || self.gpu_memory.is_some_and(|bytes| bytes > MAX_MEMORY) {
            return Err(format!("more than {} TiB of memory on one node", MAX_MEMORY >> 40));
        }
        if self.gpu_memory.is_some_and(|bytes| bytes < 1 << 20) {
            return Err("GPU memory must be at least 1 MiB".to_owned());
        }
        Ok(())
    }
}

/// The part of each GPU that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Share {
    Milli(u32),
    Bytes(u64),
}

/// The resources that a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub cpu_milli: u64,
    /// Bytes of host memory.
    pub memory: u64,
    pub gpus: u32,
    /// The part of each GPU. `Milli(0)` if the request has no GPUs.
    pub share: Share,
    /// The models that the pod accepts, separated by `|`. Empty: any.
    pub models: String,
}

impl Request {
    /// An error if a quantity is invalid.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.cpu_milli > MAX_CPU {
            return Err(format!("{} thousandths of CPUs; the most is {MAX_CPU}", self.cpu_milli));
        }
        if self.memory > MAX_MEMORY {
            return Err(format!("more than {} TiB of memory", MAX_MEMORY >> 40));
        }
        if self.gpus > MAX_GPUS {
            return Err(format!("{} GPUs; the most is {MAX_GPUS}", self.gpus));
        }
        if self.models.len() > MAX_MODELS {
            return Err(format!("{} bytes of models; the most is {MAX_MODELS}", self.models.len()));
        }
        match (self.gpus, self.share) {
            (0, Share::Milli(0)) => Ok(()),
            (0, _) => Err("a share of a GPU but no GPU: set num_gpu to 1, or gpu_milli to 0".to_owned()),
            (_, Share::Milli(0) | Share::Bytes(0)) => {
                Err(format!("{} GPUs but 0 of each: set gpu_milli to 1..1000", self.gpus))
            }
            (_, Share::Milli(milli)) if milli > WHOLE => {
                Err(format!("{milli} thousandths of one GPU; a whole GPU has 1000"))
            }
            (_, Share::Bytes(bytes)) if bytes > MAX_MEMORY => {
                Err(format!("more than {} TiB of memory of one GPU", MAX_MEMORY >> 40))
            }
            _ => Ok(()),
        }
    }

    /// The units that it takes of each of its GPUs if a GPU has `units`. More than `units` does not fit.
    pub fn units_of(&self, units: u64) -> u64 {
        match self.share {
            // Rounded down, so that shares that add up to a whole GPU fit on one.
            Share::Milli(milli) => (u128::from(units) * u128::from(milli) / u128::from(WHOLE)) as u64,
            Share::Bytes(bytes) => {
                // If the size is unknown, bytes cannot be compared with it, so only a whole GPU is safe.
                if units == u64::from(WHOLE) { u64::from(WHOLE) } else { bytes }
            }
        }
    }

    /// The thousandths that it takes of each of its GPUs if a GPU has `units`, rounded up; at most 1,000.
    pub fn milli_of(&self, units: u64) -> u32 {
        match self.share {
            Share::Milli(milli) => milli,
            Share::Bytes(_) => {
                let taken = u128::from(self.units_of(units).min(units));
                (taken * u128::from(WHOLE)).div_ceil(u128::from(units.max(1))) as u32
            }
        }
    }

    /// True if a node with GPUs of this model may take it.
    pub fn accepts(&self, model: &str) -> bool {
        self.gpus == 0 || self.models.is_empty() || self.models.split('|').any(|one| one.trim() == model)
    }
}

/// A pod with its request and, if given, its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub request: Request,
    /// Seconds; `None` if the list gives no times.
    pub created: Option<u64>,
    pub deleted: Option<u64>,
    /// Of pods that arrive in the same second, the one with the highest priority is placed first.
    pub priority: i32,
    /// Pods of one gang are placed together or not at all. Empty: no gang.
    pub gang: String,
}

/// An error unless the cluster has nodes with unique names.
pub fn check_nodes(nodes: &[Node]) -> Result<()> {
    if nodes.is_empty() {
        return Err(Error::Input("the list has no nodes".to_owned()));
    }
    unique("node", nodes.iter().map(|node| node.name.as_str()))
}

/// An error unless the names of pods are unique.
pub fn check_pods(pods: &[Pod]) -> Result<()> {
    unique("pod", pods.iter().map(|pod| pod.name.as_str()))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = rustc_hash::FxHashSet::default();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::Input(format!("two {what}s are named {name:?}")));
        }
    }
    Ok(())
}
