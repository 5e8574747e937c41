//! Limits on what clients may demand of this process: bytes, connections, time. All bounds against misuse are here.

use std::time::Duration;

/// The head of a message.
pub const MOST_HEAD: u64 = 64 << 10;
/// The largest answer of the API server. Lists come in pages, and an object has at most 3 MiB.
pub const MOST_BODY: u64 = 64 << 20;
/// The largest request to the extender, which has a pod and the names of all nodes of a cluster.
pub const MOST_REQUEST: u64 = 2 << 20;
/// The longest event of a watch.
pub const MOST_EVENT: usize = 16 << 20;

/// The most connections at once. The scheduler keeps some dozens open.
pub const CROWD: usize = 512;
/// The most connections of probes and Prometheus at once.
pub const FEW: usize = 64;
/// The most requests that are parsed at once, because objects take many times the bytes of their text.
pub const AT_ONCE: usize = 8;
/// Smaller requests do not count.
pub const SMALL: usize = 64 << 10;

/// A connection of the scheduler that is silent for this long is closed.
pub const IDLE: Duration = Duration::from_secs(120);
/// The longest time from the first byte of a request to its last.
pub const WHOLE: Duration = Duration::from_secs(10);
/// The same for probes.
pub const PROBE_IDLE: Duration = Duration::from_secs(5);
pub const PROBE_WHOLE: Duration = Duration::from_secs(2);
/// The most layers of a model whose size is computed for a pod.
pub const MOST_LAYERS: u64 = 1000;
/// The API server must begin an answer within this time, and go on after each pause.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The longest time from the first byte of an answer to its last, and the same for a watch.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
pub const LONGEST_WATCH: Duration = Duration::from_secs(600);

/// The time that filter waits for the size for `auto`. After that it answers without it, and the pod is tried again.
pub const SIZED_WITHIN: Duration = Duration::from_millis(500);
/// The most sizes that are computed at once.
pub const SIZED_AT_ONCE: usize = 2;
/// The most remembered sizes, and the most bytes of the questions. Beyond it, all are forgotten.
pub const MOST_SIZES: usize = 10_000;
pub const MOST_QUESTIONS: usize = 8 << 20;
/// A size that came from a ConfigMap counts for this long.
pub const SIZE_COUNTS: Duration = Duration::from_secs(60);

/// A pod that is assumed on a node and not bound for this long is forgotten. The clock is monotonic.
pub const ASSUMED_FOR: Duration = Duration::from_secs(300);
/// The same for a pod that the watch has not reported, which may not exist.
pub const UNKNOWN_FOR: Duration = Duration::from_secs(10);
/// The most such pods that are assumed at once.
pub const MOST_UNKNOWN: usize = 16;
/// A pod that is booked and not bound for this long loses its place, because the replica that booked it is gone.
pub const BOOKED_FOR: Duration = Duration::from_secs(60);
/// The most remembered ids of deleted pods. They keep an answer that is older than the deletion from
/// bringing a pod back.
pub const MOST_DEAD: usize = 100_000;
/// The most closed nodes that the metrics name.
pub const MOST_NAMED: usize = 50;
/// Seconds after which the API server ends a watch; the next one begins where it ended.
pub const WATCHED_FOR: u64 = 30;
/// A watch that is silent for longer is dead, because the API server ends each watch earlier.
pub const SILENCE: Duration = Duration::from_secs(WATCHED_FOR + 10);
