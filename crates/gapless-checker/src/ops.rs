//! The operations of programs. Allocations, graphs and pools have names, so that an operation keeps its meaning when
//! others are left out. An operation that does not apply (its allocation was never made, its stream is gone) does
//! nothing.

use gapless_pool::options::Options;
use std::fmt;

/// The streams of a program, by slot. The program cannot destroy handle 0.
pub(crate) const DEFAULT_SLOT: u8 = 0;
/// Streams that programs make and destroy.
pub(crate) const OWN_SLOTS: [u8; 4] = [1, 2, 3, 4];
/// Handle 2, which is another stream in each thread.
pub(crate) const PER_THREAD_SLOT: u8 = 5;
/// A stream of another context, which a fence does not cover.
pub(crate) const FOREIGN_SLOT: u8 = 6;
/// A stream that the allocator never hears of.
pub(crate) const UNHEARD_SLOT: u8 = 7;
pub(crate) const SLOTS: usize = 8;

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Requests memory on a stream, from a private pool (0 is the default pool), and writes it.
    Alloc {
        id: u32,
        stream: u8,
        pool: u8,
        size: u64,
        budget: Option<u8>,
    },
    /// A kernel on the allocation's own stream.
    Touch {
        id: u32,
    },
    /// Another stream waits for the owner's, uses the allocation, and is announced with `record_stream`.
    Announce {
        id: u32,
        stream: u8,
    },
    /// Another stream waits for the owner's, uses the allocation, and the owner's waits for it.
    Borrow {
        id: u32,
        stream: u8,
    },
    /// The same, but the owner's wait comes after the free; see [`Op::Pay`].
    LateWait {
        id: u32,
        stream: u8,
        thread: u8,
    },
    /// Lets a stream make the late waits that it still owes. Its next request does so too.
    Pay {
        stream: u8,
    },
    /// Frees an allocation, in a thread.
    Free {
        id: u32,
        thread: u8,
    },
    /// Destroys a stream. Its work goes on.
    Destroy {
        stream: u8,
    },
    /// Makes a new stream in place of a destroyed one, with an old handle if the host knows that its work is done.
    Create {
        stream: u8,
        reuse: bool,
    },
    /// One stream waits for another.
    Wait {
        stream: u8,
        other: u8,
    },
    /// The scheduler runs some work of a stream.
    Run {
        stream: u8,
        most: u16,
    },
    /// The program synchronises with a stream, or with the device.
    SyncStream {
        stream: u8,
    },
    SyncDevice,
    /// The following calls come from this thread.
    Thread {
        thread: u8,
    },
    /// Begins to capture a stream; its requests go to a private pool of graphs.
    BeginCapture {
        graph: u32,
        stream: u8,
        pool: u8,
    },
    /// Another stream joins the capture: its requests go to the same pool.
    JoinCapture {
        stream: u8,
    },
    EndCapture,
    /// A request of a stream in a capture that the program did not report. It goes to the default pool, outside of the
    /// capture.
    AllocInRawCapture {
        id: u32,
        stream: u8,
        size: u64,
    },
    /// Another thread begins to capture a stream through the driver, or ends that, after this number of driver calls.
    Meddle {
        after: u8,
        stream: u8,
    },
    Replay {
        graph: u32,
        stream: u8,
    },
    DropGraph {
        graph: u32,
    },
    /// Begins the use of a private pool: of the last one in its slot again, or of a new one.
    UsePool {
        pool: u8,
        again: bool,
    },
    /// Releases a private pool.
    ReleasePool {
        pool: u8,
    },
    Trim,
    /// Gives back memory that no work uses, without a wait; of released private pools, or of all.
    TrimBehind {
        of_all: bool,
    },
    TrimPool {
        pool: u8,
    },
    TrimGraphPool {
        pool: u8,
    },
    /// Completes frees that no stream uses any more.
    Poll,
    /// Grants all memory again, as for peers.
    GrantAgain,
    ResetPeaks,
    /// Installs plans that were requested, if plans come late.
    Install,
    MarkStep,
    Pause,
    /// Limits the pool to eighths of the card; 0 for no limit.
    Limit {
        eighths: u8,
    },
    /// Takes memory in advance.
    Hold {
        stream: u8,
        eighths: u8,
    },
    Save {
        pool: u8,
    },
    Restore {
        pool: u8,
    },
    /// The same for a pool of graphs.
    SaveGraphs {
        pool: u8,
    },
    RestoreGraphs {
        pool: u8,
    },
    /// Puts the memory of a private pool to sleep, after the program's work.
    Sleep {
        pool: u8,
    },
    /// Wakes it.
    Wake {
        pool: u8,
    },
    /// Another process maps the pages of an allocation, which its owner holds meanwhile.
    Share {
        id: u32,
    },
    /// The other process unmaps them. An allocation that was freed since then goes now.
    Unshare {
        id: u32,
    },
    /// Resizes an elastic range to this number of slots, and writes the new ones.
    Resize {
        range: u8,
        slots: u8,
        stream: u8,
    },
    /// A kernel uses all of an elastic range.
    TouchRange {
        range: u8,
        stream: u8,
    },
    /// Runs the jobs of the thread of the elastic ranges.
    ElasticWork,
    /// The device call after `after` others fails.
    Fault {
        after: u16,
    },
}

/// The kind of planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plans {
    Nobody,
    AtOnce,
    /// At the next [`Op::Install`].
    Later,
}

/// The environment of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub capacity: u64,
    pub options: Options,
    /// True to call the pool through [`SharedPool`](gapless_pool::SharedPool) and its fronts.
    pub is_shared: bool,
    /// True if requests and trims wait outside of the pool, while other threads go on.
    pub is_asking: bool,
    pub planner: Plans,
    /// Addresses that the device has.
    pub addresses: u64,
    /// Addresses that may ever be mapped beyond twice the bytes that are mapped at once, in multiples of the card.
    pub most_cards: u64,
}

/// A program, and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub seed: u64,
    pub config: Config,
    pub ops: Vec<Op>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { capacity, options, is_shared, is_asking, planner, addresses, .. } = self.config;
        writeln!(
            f,
            "seed {}: card of {} MiB, limit {:?} MiB, {} windows, shared {is_shared}, asking {is_asking}, planner {planner:?}, \
             {} GiB of addresses",
            self.seed,
            capacity >> 20,
            options.limit.map(|limit| limit >> 20),
            options.windows,
            addresses >> 30
        )?;
        for (at, op) in self.ops.iter().enumerate() {
            writeln!(f, "  {at:3}  {op:?}")?;
        }
        Ok(())
    }
}
