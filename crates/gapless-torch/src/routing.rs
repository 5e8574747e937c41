//! Routings lead requests to pools. PyTorch opens them for graph captures and memory pools, each with a filter of
//! streams.
//!
//! Filters are PyTorch's code and may throw, so they are asked before a card is locked, on a list that the card
//! publishes. If a card has no routing, this costs one load. If a request asks before a routing begins, it counts as
//! made before it.
//!
//! A routing is a **capture** or a memory pool's, and only a capture makes the pool quiet. PyTorch opens a capture's
//! routing before the capture begins, so its filter does not take the thread's current stream then. A memory pool's
//! filter does, unless an extension opens it for other streams. From then on Gapless watches the stream. If it was
//! captured and is captured no longer, the capture is over, even if PyTorch never ends the routing, as after a failure.
//! If the thread that opened the routing locks the card again before the stream is captured, there is no capture.
//!
//! PyTorch 2.13 and newer also **mark** captures: that one has begun on the thread's current stream, and that it has
//! ended. Between the two, routings of the same pool may end and begin again (conditional nodes of a graph). These take
//! the captured stream at once and look like a memory pool's: the mark says that the capture goes on. A mark holds as
//! long as its stream is captured.

use crate::foreign::{self, Filter};
use crate::process::CARDS;
use crate::regions;
use gapless_cuda::locks::Lock;
use gapless_pool::{PoolKey, StreamHandle};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A pool, and the filter of the requests that go to it.
#[derive(Debug)]
pub struct Routing {
    pub pool: PoolKey,
    pub filter: Filter,
}

/// The relation of a routing to a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// None: it is a memory pool's.
    No,
    /// A capture of an unknown stream: open until PyTorch ends it.
    Unknown,
    /// A capture that is about to begin on this stream, if the thread that opened it does nothing else first.
    Awaited(StreamHandle, Here),
    Running(StreamHandle),
    /// No capture began: it takes requests of other streams than the thread's own, or the capture was refused. PyTorch
    /// may never end it.
    Elsewhere,
    /// It ended or failed. PyTorch may still end the routing.
    Over,
}

/// Identity of a live thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here(usize);

impl Here {
    /// The present thread. The address of a thread-local variable identifies it while it lives.
    #[must_use]
    pub fn new() -> Here {
        thread_local! {
            static MARK: u8 = const { 0 };
        }
        Here(MARK.with(|mark| std::ptr::from_ref(mark) as usize))
    }
}

impl Default for Here {
    fn default() -> Here {
        Here::new()
    }
}

impl Capture {
    fn is_open(self) -> bool {
        matches!(self, Capture::Unknown | Capture::Awaited(..) | Capture::Running(_))
    }

    /// The kind of a routing that begins now, with this filter.
    ///
    /// # Safety
    /// C++ exceptions may pass the callers: no guard, and no card locked.
    pub(crate) unsafe fn of(device: i32, filter: &Filter) -> Capture {
        let (Some(torch), Ok(device)) = (foreign::torch(), i8::try_from(device)) else {
            return Capture::Unknown;
        };
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        unsafe {
            let stream = torch.current_stream(device);
            if filter.accepts(stream) {
                Capture::No
            } else {
                Capture::Awaited(StreamHandle(stream as u64), Here::new())
            }
        }
    }
}

/// The routings of a card, oldest first. Invariant: a pool has at most one.
#[derive(Debug, Default)]
pub struct Routings {
    open: Vec<(Arc<Routing>, Capture)>,
    /// Streams that are captured, as PyTorch reports.
    marked: Vec<StreamHandle>,
}

impl Routings {
    /// True if no routing takes requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.iter().all(|(_, capture)| *capture == Capture::Over)
    }

    /// True if a capture is open. CUDA then forbids to record events, to query streams and to wait.
    #[must_use]
    pub fn has_capture(&self) -> bool {
        !self.marked.is_empty() || self.open.iter().any(|(_, capture)| capture.is_open())
    }

    /// A capture has begun on this stream.
    pub fn mark(&mut self, stream: StreamHandle) {
        self.marked.push(stream);
    }

    /// A capture on this stream has ended. [`Routings::watch`] may have removed its mark already, if the capture
    /// failed.
    pub fn unmark(&mut self, stream: StreamHandle) {
        if let Some(at) = self.marked.iter().rposition(|marked| *marked == stream) {
            self.marked.remove(at);
        }
    }

    /// True if PyTorch has a routing of this pool that it has not ended. This includes a routing that takes nothing:
    /// another thread's capture is about to begin, or is over and PyTorch is about to end it. That end would be taken
    /// for the end of a second routing.
    #[must_use]
    pub fn has(&self, pool: PoolKey) -> bool {
        self.open.iter().any(|(routing, _)| routing.pool == pool)
    }

    pub fn begin(&mut self, routing: Routing, capture: Capture) {
        self.open.push((Arc::new(routing), capture));
    }

    /// Ends the routing of this pool. False if there was none.
    pub fn end(&mut self, pool: PoolKey) -> bool {
        let found = self.open.iter().position(|(routing, _)| routing.pool == pool);
        found.map(|at| self.open.remove(at)).is_some()
    }

    /// The pool has no users any more. PyTorch may never end captures into it that failed or never began, so they take
    /// nothing from now on. They stay in the list, because PyTorch may still end them after the last release.
    pub fn give_up(&mut self, pool: PoolKey) {
        for (_, capture) in self.open.iter_mut().filter(|(routing, _)| routing.pool == pool) {
            if matches!(capture, Capture::Elsewhere | Capture::Awaited(..)) {
                *capture = Capture::Over;
            }
        }
    }

    /// The pool of the capture that the captured `stream` belongs to, found without a filter. It is that of a routing
    /// for this very stream, else of the newest capture that runs, else (within a mark) of the newest routing. PyTorch
    /// does not name streams that joined a capture.
    #[must_use]
    pub fn pool_of_captured(&self, stream: StreamHandle) -> Option<PoolKey> {
        let is_running = |capture: Capture| matches!(capture, Capture::Running(_) | Capture::Unknown);
        let newest = |takes: &dyn Fn(Capture) -> bool| {
            self.open.iter().rev().find(|(_, capture)| takes(*capture)).map(|(routing, _)| routing.pool)
        };
        newest(&|capture| capture == Capture::Running(stream))
            .or_else(|| newest(&is_running))
            .or_else(|| newest(&|capture| capture != Capture::Over))
    }

    /// Looks at the streams of captures, from the thread `here`. True if one began or is over. PyTorch begins a capture
    /// as soon as it has opened the routing, so a thread that comes here without a capture has none.
    pub fn watch(&mut self, here: Here, mut is_captured: impl FnMut(StreamHandle) -> bool) -> bool {
        let marks = self.marked.len();
        self.marked.retain(|stream| is_captured(*stream));
        let mut changed = marks != self.marked.len();
        for (_, capture) in &mut self.open {
            let next = match *capture {
                Capture::Awaited(stream, _) if is_captured(stream) => Capture::Running(stream),
                Capture::Awaited(_, opener) if opener == here => Capture::Elsewhere,
                Capture::Running(stream) if !is_captured(stream) => Capture::Over,
                same => same,
            };
            changed |= next != *capture;
            *capture = next;
        }
        changed
    }

    /// Publishes the filters that requests of the card `device` ask. Captures that are over are left out: they take
    /// nothing, and their filters may belong to graphs that are gone.
    pub fn publish(&self, device: i32) {
        let Some(published) = published(device) else { return };
        let taking = self.open.iter().filter(|(_, capture)| *capture != Capture::Over);
        let list: Vec<Arc<Routing>> = taking.map(|(routing, _)| routing.clone()).collect();
        let before = {
            let mut slot = published.list.lock();
            published.count.store(list.len(), Ordering::Release);
            slot.replace(Arc::new(list))
        };
        // Dropped without the lock: this may be the last use of a filter, whose destructor is C++ code.
        drop(before);
    }
}

/// The list that requests read without the card's lock.
#[derive(Debug)]
struct Published {
    count: AtomicUsize,
    list: Lock<Option<Arc<Vec<Arc<Routing>>>>>,
}

static PUBLISHED: [Published; CARDS] =
    [const { Published { count: AtomicUsize::new(0), list: Lock::new(|| None) } }; CARDS];

fn published(device: i32) -> Option<&'static Published> {
    PUBLISHED.get(usize::try_from(device).ok()?)
}

/// The pool of a request of this thread on `stream`: that of the newest routing that takes it, else the
/// current region's.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
#[inline]
#[must_use]
pub unsafe fn pool_of(device: i32, stream: *mut c_void) -> PoolKey {
    match published(device) {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        Some(published) if published.count.load(Ordering::Acquire) > 0 => unsafe { published.ask(stream) },
        _ => regions::current(),
    }
}

impl Published {
    /// # Safety
    /// As [`pool_of`].
    #[cold]
    unsafe fn ask(&self, stream: *mut c_void) -> PoolKey {
        let list = self.list.lock().clone();
        let mut routings = list.iter().flat_map(|list| list.iter().rev());
        // SAFETY: exceptions may pass, as `pool_of` demands. They drop the list, which is all that this frame owns.
        let found = routings.find(|routing| unsafe { routing.filter.accepts(stream) });
        found.map_or_else(regions::current, |routing| routing.pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cxx::Function;

    const STREAM: StreamHandle = StreamHandle(0x5000);
    /// A thread other than the one that looks.
    const OTHER: Here = Here(0);

    fn routing(pool: u64) -> Routing {
        Routing { pool: PoolKey(0, pool), filter: Filter(Function::EMPTY) }
    }

    #[test]
    fn a_memory_pool_is_no_capture() {
        let mut routings = Routings::default();
        routings.begin(routing(1), Capture::No);
        assert!(!routings.is_empty() && !routings.has_capture());
        assert!(!routings.watch(Here::new(), |_| panic!("it has no stream to look at")));
        assert!(routings.has(PoolKey(0, 1)) && !routings.has(PoolKey(0, 2)));
        routings.end(PoolKey(0, 1));
        assert!(routings.is_empty() && !routings.has(PoolKey(0, 1)));
    }

    #[test]
    fn a_routing_whose_thread_comes_by_without_a_capture_is_none() {
        let mut routings = Routings::default();
        routings.begin(routing(1), Capture::Awaited(STREAM, Here::new()));
        let elsewhere = std::thread::spawn(Here::new).join().expect("a thread");
        assert!(!routings.watch(elsewhere, |_| false) && routings.has_capture(), "others wait for it");
        assert!(routings.watch(Here::new(), |_| false) && !routings.has_capture());
        assert!(!routings.is_empty(), "it takes other streams' requests");
        assert!(!routings.watch(Here::new(), |_| panic!("nobody asks about its stream any more")));
        routings.give_up(PoolKey(0, 1));
        assert!(routings.is_empty(), "a capture that was refused may never be ended");
    }

    #[test]
    fn the_end_of_what_did_not_begin_is_told() {
        let mut routings = Routings::default();
        assert!(!routings.end(PoolKey(0, 1)));
        routings.begin(routing(1), Capture::No);
        assert!(!routings.end(PoolKey(0, 2)) && routings.end(PoolKey(0, 1)) && !routings.end(PoolKey(0, 1)));
    }

    #[test]
    fn a_capture_that_never_began_is_given_up_with_its_pool() {
        let mut routings = Routings::default();
        routings.begin(routing(1), Capture::Awaited(STREAM, OTHER));
        routings.give_up(PoolKey(0, 2));
        assert!(routings.has_capture(), "another pool's end says nothing about it");
        routings.give_up(PoolKey(0, 1));
        assert!(!routings.has_capture() && routings.is_empty());
    }

    #[test]
    fn the_end_of_a_routing_may_be_said_after_the_last_release_of_its_pool() {
        let all = [Capture::No, Capture::Awaited(STREAM, OTHER), Capture::Elsewhere, Capture::Over];
        for capture in all {
            let mut routings = Routings::default();
            routings.begin(routing(1), capture);
            routings.give_up(PoolKey(0, 1));
            assert!(routings.is_empty() == (capture != Capture::No), "{capture:?}: a memory pool stays open");
            assert!(routings.end(PoolKey(0, 1)) && !routings.end(PoolKey(0, 1)), "{capture:?}");
        }
    }

    #[test]
    fn a_capture_is_open_until_its_stream_was_captured_and_is_not_any_more() {
        let mut routings = Routings::default();
        routings.begin(routing(1), Capture::Awaited(STREAM, OTHER));
        assert!(!routings.watch(Here::new(), |_| false) && routings.has_capture(), "it is about to begin");
        assert!(routings.watch(Here::new(), |stream| stream == STREAM) && routings.has_capture());
        assert!(routings.watch(Here::new(), |_| false) && !routings.has_capture() && routings.is_empty());
        // Usually PyTorch ends the routing too.
        routings.end(PoolKey(0, 1));
        assert!(routings.open.is_empty());
    }

    #[test]
    fn a_pool_has_its_routing_until_pytorch_ends_it_whatever_its_capture_does() {
        let all = [
            Capture::No,
            Capture::Unknown,
            Capture::Awaited(STREAM, OTHER),
            Capture::Awaited(STREAM, Here::new()),
            Capture::Running(STREAM),
            Capture::Elsewhere,
            Capture::Over,
        ];
        for capture in all {
            for is_captured in [true, false] {
                let mut routings = Routings::default();
                routings.begin(routing(1), capture);
                for _ in 0..3 {
                    assert!(routings.has(PoolKey(0, 1)), "{capture:?}: a second routing would be begun");
                    routings.watch(Here::new(), |_| is_captured);
                }
                assert!(routings.end(PoolKey(0, 1)) && !routings.end(PoolKey(0, 1)), "{capture:?}");
                assert!(!routings.has(PoolKey(0, 1)) && routings.is_empty());
            }
        }
    }

    #[test]
    fn a_captured_stream_has_the_pool_of_its_own_capture_or_of_the_newest() {
        let (other, joined) = (StreamHandle(0x6000), StreamHandle(0x7000));
        let mut routings = Routings::default();
        assert_eq!(routings.pool_of_captured(STREAM), None);
        routings.begin(routing(1), Capture::Running(STREAM));
        routings.begin(routing(2), Capture::Running(other));
        routings.begin(routing(3), Capture::No);
        let pools = [STREAM, other, joined].map(|stream| routings.pool_of_captured(stream));
        assert_eq!(pools, [Some(PoolKey(0, 1)), Some(PoolKey(0, 2)), Some(PoolKey(0, 2))]);
        routings.watch(Here::new(), |_| false);
        assert_eq!(routings.pool_of_captured(STREAM), Some(PoolKey(0, 3)), "within a mark");
    }

    #[test]
    fn a_stream_that_cannot_be_told_is_waited_for_until_the_end_is_said() {
        let mut routings = Routings::default();
        routings.begin(routing(1), Capture::Unknown);
        assert!(!routings.watch(Here::new(), |_| false) && routings.has_capture());
        routings.end(PoolKey(0, 1));
        assert!(!routings.has_capture());
    }

    #[test]
    fn a_marked_capture_goes_on_while_its_routings_end_and_begin() {
        let mut routings = Routings::default();
        routings.begin(routing(1), Capture::Awaited(STREAM, OTHER));
        routings.mark(STREAM);
        routings.end(PoolKey(0, 1));
        routings.begin(routing(1), Capture::No);
        assert!(!routings.watch(Here::new(), |_| true) && routings.has_capture());
        routings.unmark(STREAM);
        assert!(!routings.has_capture() && !routings.is_empty());
    }

    #[test]
    fn a_mark_of_a_capture_that_was_given_up_is_forgotten() {
        let mut routings = Routings::default();
        routings.mark(STREAM);
        assert!(routings.watch(Here::new(), |_| false) && !routings.has_capture());
        routings.unmark(STREAM);
        assert!(!routings.has_capture());
    }
}
