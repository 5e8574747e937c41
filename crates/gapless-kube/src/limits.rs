//! How much others may ask of this process: bytes, connections, time. Everything that is bounded because somebody could
//! misuse it has its bound here.

use std::time::Duration;

/// The head of a message.
pub const MOST_HEAD: u64 = 64 << 10;
/// An answer of the API server: lists come in pages, and an object has at most 3 MiB.
pub const MOST_BODY: u64 = 64 << 20;
/// A request to the extender: a pod, and the names of all nodes of a cluster.
pub const MOST_REQUEST: u64 = 2 << 20;
/// The longest event of a watch.
pub const MOST_EVENT: usize = 16 << 20;

/// Connections at once. The scheduler keeps some dozens open.
pub const CROWD: usize = 512;
/// Connections of probes and Prometheus at once, and of one address among them.
pub const FEW: usize = 64;
pub const OF_ONE_ADDRESS: usize = 16;
/// Requests that are read into objects at once: those take many times the bytes of their text.
pub const AT_ONCE: usize = 8;
/// A smaller request does not count among those.
pub const SMALL: usize = 64 << 10;

/// A connection of the scheduler that says nothing for so long is closed.
pub const IDLE: Duration = Duration::from_secs(120);
/// From the first byte of a request to its last.
pub const WHOLE: Duration = Duration::from_secs(10);
/// The same for probes.
pub const PROBE_IDLE: Duration = Duration::from_secs(5);
pub const PROBE_WHOLE: Duration = Duration::from_secs(2);
/// Layers of a model whose size is worked out for a pod.
pub const MOST_LAYERS: u64 = 1000;
/// Answers of the API server must come within this time.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long filter waits for the size that `auto` stands for. It goes on without, and the pod is tried again.
pub const SIZED_WITHIN: Duration = Duration::from_millis(500);
/// Sizes that are worked out at once.
pub const SIZED_AT_ONCE: usize = 2;
/// Sizes that are remembered; then all are forgotten.
pub const MOST_SIZES: usize = 10_000;
/// A size that came from a ConfigMap counts for so long.
pub const SIZE_COUNTS: Duration = Duration::from_secs(60);

/// A pod that is assumed on a node and not bound for so long is forgotten. The clock is monotonic.
pub const ASSUMED_FOR: Duration = Duration::from_secs(300);
/// The same for a pod of which the API server has not told: perhaps there is none.
pub const UNKNOWN_FOR: Duration = Duration::from_secs(10);
/// Such pods that are assumed at once.
pub const MOST_UNKNOWN: usize = 16;
/// A pod that is booked and not bound for so long gives its place back: whoever booked it is gone.
pub const BOOKED_FOR: Duration = Duration::from_secs(60);
/// Ids of deleted pods that are remembered: an answer that is older than the deletion does not bring them back.
pub const MOST_DEAD: usize = 100_000;
/// Seconds after which the API server ends a watch; the next one begins where it ended.
pub const WATCHED_FOR: u64 = 30;
/// A watch that is silent for longer is dead: the other end is gone, and nobody told.
pub const SILENCE: Duration = Duration::from_secs(WATCHED_FOR + 10);
