//! The content of a statistics file. Sizes are in bytes, times in microseconds since the Unix epoch.
//!
//! `live` in this file is the sum of block sizes that the program holds; `gapless top` shows it as "allocated".

use crate::process::Process;

/// A process and the cards that it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub process: Process,
    /// The budget under which the process runs, if there is one.
    pub tenant: Option<Tenant>,
    /// The time at which the statistics file was written.
    pub time: u64,
    pub cards: Vec<Card>,
}

impl Statistics {
    /// The statistics file of a process that uses nothing yet.
    #[must_use]
    pub fn new(process: Process) -> Statistics {
        Statistics { process, ..Statistics::default() }
    }

    #[must_use]
    pub fn with_tenant(mut self, name: &str, limit: Option<u64>) -> Statistics {
        self.tenant = Some(Tenant { name: name.to_owned(), limit });
        self
    }
}

/// A budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    pub name: String,
    pub limit: Option<u64>,
}

/// One card, as one process uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The card's number in the process.
    pub index: u32,
    /// The card's identity on every machine.
    pub uuid: Option<[u8; 16]>,
    pub name: String,
    /// Bytes of the whole card, in use by any process.
    pub total: u64,
    pub free: u64,
    /// The limit on the process's memory.
    pub limit: Option<u64>,
    /// Blocks that the program holds, now and at most: torch calls them allocated.
    pub live: u64,
    pub peak_live: u64,
    /// Requested bytes until their blocks are free again, and the bytes of these blocks.
    pub requested: u64,
    pub active: u64,
    /// Device memory that the process holds, now and at most.
    pub reserved: u64,
    pub peak_reserved: u64,
    /// Free bytes in pages that other blocks use. They take a walk over all blocks, so they may be some seconds old,
    /// like lanes and holders.
    pub stranded: u64,
    pub blocks: u64,
    pub counters: Counters,
    /// Streams and pools, the most reserved first; those beyond [`crate::layout::LANES`] are only counted.
    pub lanes: Vec<Lane>,
    pub more_lanes: u32,
    /// The largest holders, the most bytes first; at most [`crate::layout::HOLDERS`].
    pub holders: Vec<Holder>,
    /// Memory that sleeps and wakes by name, the most bytes first; at most [`crate::layout::REGIONS`].
    pub regions: Vec<Region>,
    /// Samples of the last minutes, oldest first; at most [`crate::layout::SAMPLES`].
    pub samples: Vec<Sample>,
}

impl Card {
    /// 1 - peak live / peak reserved; 0 if nothing was reserved.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.peak_reserved {
            0 => 0.0,
            reserved => 1.0 - self.peak_live.min(reserved) as f64 / reserved as f64,
        }
    }

    /// Requests served in a second, by the newest samples.
    #[must_use]
    pub fn allocations_per_second(&self) -> f64 {
        let [.., before, now] = self.samples.as_slice() else { return 0.0 };
        let micros = now.time.saturating_sub(before.time);
        let count = now.allocations.saturating_sub(before.allocations);
        if micros == 0 { 0.0 } else { count as f64 * 1e6 / micros as f64 }
    }
}

/// Sums since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub allocations: u64,
    pub frees: u64,
    /// Requests that failed in the end, and requests that were tried again.
    pub ooms: u64,
    pub retries: u64,
    /// Pages that the driver made and mapped, calls that took memory from the device and gave it back.
    pub creates: u64,
    pub maps: u64,
    pub device_allocs: u64,
    pub device_frees: u64,
    /// Pages that were mapped a second time instead of taken from the device.
    pub harvested: u64,
    /// Times that the host waited for streams.
    pub host_waits: u64,
    /// Nanoseconds in calls that map memory.
    pub driver_ns: u64,
}

/// One stream's part of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    pub stream: u64,
    /// (0, 0) is the default pool.
    pub pool: (u64, u64),
    pub blocks: u64,
    pub live: u64,
    pub reserved: u64,
}

/// A group of live blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// `model.py:123 forward`, or `24 blocks of 96.0 MiB`.
    pub what: String,
    pub bytes: u64,
    pub blocks: u64,
}

/// A named part of the program's memory that sleeps and wakes. `live` and `reserved` do not count its sleeping memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    pub name: String,
    /// The place of its bytes while it sleeps: `host`, `disk`, `discard` or `compressed`.
    pub keep: String,
    /// Blocks that are awake, and device memory behind the region.
    pub live: u64,
    pub held: u64,
    /// Blocks that sleep, and host memory that keeps their bytes.
    pub asleep: u64,
    pub host: u64,
}

/// The card at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub time: u64,
    /// The highest values since the sample before.
    pub live: u64,
    pub reserved: u64,
    /// The counter at that time.
    pub allocations: u64,
}
