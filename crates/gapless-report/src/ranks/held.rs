//! The most that each origin held of a device: by stack, and by the size of the requests.

use super::cut::{Cut, lasts};
use super::sizes;
use gapless_trace::holders::stack_label;
use gapless_trace::{Allocation, AllocationId, Bytes, StackId, Tick, Trace};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

/// The most origins that are kept of a device.
const HOLDERS: usize = 512;

/// Requests of one origin that all last beyond their step, or all do not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) key: u64,
    /// The size class, if the origin is one.
    pub(crate) class: Option<u16>,
    pub(crate) lasting: bool,
    /// The most at once since the first step began; for requests that do not last, since it ended.
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) kind: &'static str,
    pub(crate) label: String,
}

/// One origin while it is gathered.
struct Gathered {
    held: Held,
    now: (u64, u64),
    /// The largest request, and its stack.
    largest: u64,
    example: Option<StackId>,
}

/// All origins of one kind while they are gathered.
#[derive(Default)]
struct Gathering {
    index: FxHashMap<(u64, bool), usize>,
    all: Vec<Gathered>,
    /// The origin of each allocation, by its number.
    origin: Vec<u32>,
}

impl Gathering {
    fn of(allocations: usize) -> Gathering {
        Gathering { origin: vec![0; allocations], ..Gathering::default() }
    }

    fn end(&mut self, id: u32, size: Bytes) {
        let gathered = &mut self.all[self.origin[id as usize] as usize];
        gathered.now.0 -= size.0;
        gathered.now.1 -= 1;
    }

    /// Starts the maxima from what is held now, so that earlier peaks do not count.
    fn begin(&mut self) {
        for gathered in &mut self.all {
            (gathered.held.bytes, gathered.held.count) = gathered.now;
        }
    }

    /// Adds an allocation to its origin; `counts` if this may raise the origin's maximum.
    fn add(
        &mut self,
        id: AllocationId,
        a: &Allocation,
        lasting: bool,
        origin: Origin,
        counts: bool,
    ) -> &mut Gathered {
        let at = *self.index.entry((origin.key, lasting)).or_insert_with(|| {
            let Origin { key, class } = origin;
            let held = Held { key, class, lasting, bytes: 0, count: 0, kind: "", label: String::new() };
            self.all.push(Gathered { held, now: (0, 0), largest: 0, example: None });
            self.all.len() - 1
        });
        self.origin[id.0 as usize] = at as u32;
        let gathered = &mut self.all[at];
        gathered.now.0 += a.requested.0;
        gathered.now.1 += 1;
        if counts && gathered.now.0 > gathered.held.bytes {
            (gathered.held.bytes, gathered.held.count) = gathered.now;
        }
        gathered
    }

    /// The largest origins, named.
    fn named(mut self, trace: &Trace) -> Vec<Held> {
        self.all.retain(|gathered| gathered.held.bytes > 0);
        self.all.sort_by(|x, y| y.held.bytes.cmp(&x.held.bytes).then(x.held.key.cmp(&y.held.key)));
        self.all.truncate(HOLDERS);
        let named = |mut gathered: Gathered| {
            let by = gathered.example.and_then(|stack| stack_label(trace, stack)).map(|label| label.text);
            let sizes = || format!("requests of up to {}", Bytes(gathered.largest));
            gathered.held.label = match (by, gathered.held.class) {
                (Some(by), None) => by,
                (Some(by), Some(_)) => format!("{}, the largest by {by}", sizes()),
                (None, _) => sizes(),
            };
            gathered.held
        };
        self.all.into_iter().map(named).collect()
    }
}

#[derive(Clone, Copy)]
struct Origin {
    key: u64,
    class: Option<u16>,
}

/// The origins of a device, the largest first: by stack if there is one, and by size alone. The second is empty if no
/// request has a stack: it would equal the first.
pub(super) fn held(trace: &Trace, d: &Cut<'_, '_>) -> [Vec<Held>; 2] {
    let a = &d.history.allocations;
    // Transient memory of the first of several steps is warm-up: libraries try out kernels and fill caches.
    let spans = &d.steps.spans;
    let begin = spans.first().map_or(Tick(0), |span| span.start);
    let warm = if spans.len() >= 3 { spans[0].end } else { begin };
    let freed = |&id: &u32| a.get(AllocationId(id)).freed;
    // A block that the program had freed before the recording began (`freed == start`) is not held.
    let is_held = |a: &Allocation| a.freed > a.start;
    let mut by_end: Vec<u32> = a.ids().filter(|&id| is_held(&a.get(id))).map(|id| id.0).collect();
    by_end.sort_unstable_by_key(freed);
    let mut stacks: FxHashMap<u32, u64> = FxHashMap::default();
    let mut gatherings = vec![Gathering::of(a.len())];
    if !trace.stacks.is_empty() {
        gatherings.push(Gathering::of(a.len()));
    }
    let (mut next_end, mut begun) = (0, false);
    for id in a.ids() {
        let allocation = a.get(id);
        if !is_held(&allocation) {
            continue;
        }
        while next_end < by_end.len() && freed(&by_end[next_end]) <= allocation.start {
            let ended = by_end[next_end];
            let size = a.get(AllocationId(ended)).requested;
            gatherings.iter_mut().for_each(|gathering| gathering.end(ended, size));
            next_end += 1;
        }
        if !begun && allocation.start >= begin {
            begun = true;
            gatherings.iter_mut().for_each(Gathering::begin);
        }
        let lasting = lasts(d, &allocation);
        let counts = begun && (lasting || allocation.start >= warm);
        let class = sizes::class(allocation.requested.0);
        let stack = (!allocation.stack.is_none()).then_some(allocation.stack);
        let by_size = Origin { key: u64::from(class), class: Some(class) };
        let by_stack = stack.map_or(by_size, |stack| Origin {
            key: *stacks.entry(stack.0).or_insert_with(|| stack_key(trace, stack)),
            class: None,
        });
        for (gathering, origin) in gatherings.iter_mut().zip([by_stack, by_size]) {
            let gathered = gathering.add(id, &allocation, lasting, origin, counts);
            if allocation.requested.0 > gathered.largest {
                gathered.largest = allocation.requested.0;
                gathered.example = stack;
                gathered.held.kind = d.kinds.of(id).name();
            }
        }
    }
    if !begun {
        gatherings.iter_mut().for_each(Gathering::begin);
    }
    let mut gatherings = gatherings.into_iter().map(|gathering| gathering.named(trace));
    [gatherings.next().unwrap_or_default(), gatherings.next().unwrap_or_default()]
}

/// The functions and files of a stack: lines and folders differ between machines that run the same program.
fn stack_key(trace: &Trace, stack: StackId) -> u64 {
    let mut hasher = FxHasher::default();
    for &frame in trace.stacks.get(stack) {
        let frame = trace.frames.get(frame);
        trace.strings.get(frame.name).hash(&mut hasher);
        let file = trace.strings.get(frame.file);
        file.rsplit(['/', '\\']).next().unwrap_or(file).hash(&mut hasher);
    }
    // The highest bit keeps stack keys apart from size classes, which are small numbers.
    hasher.finish() | 1 << 63
}
