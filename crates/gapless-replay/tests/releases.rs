//! Differences between releases of PyTorch: each rule on both sides of the release that changed it. `cargo xtask
//! test-torch` compares the same rules with the shipped libraries.

use gapless_replay::run::verify;
use gapless_replay::torch::{NoteKind, Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Device, Lane, Op, Script, SimDevice, Slot};
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, EventIndex, History, PoolId, StreamId, Trace,
};

const MIB: u64 = 1 << 20;
const GRAPH: PoolId = PoolId(3, 0);
const USER: PoolId = PoolId(0, 4);

fn torch_with(minor: u32, conf: &str, card: u64) -> Torch<SimDevice> {
    let version = TorchVersion(2, minor);
    let settings = TorchSettings::parse(conf, version).expect(conf);
    let lane = |pool| Lane { stream: StreamId(0), pool };
    let lanes = [lane(PoolId::DEFAULT), lane(GRAPH), lane(USER)];
    Torch::new(settings, version, SimDevice::new(card), &lanes)
}

fn torch(minor: u32, card: u64) -> Torch<SimDevice> {
    torch_with(minor, "", card)
}

fn alloc(torch: &mut Torch<SimDevice>, slot: Slot, size: u64) -> u64 {
    torch.alloc(slot, Bytes(size), 0).expect("room").0
}

/// Two segments of 30 MiB, of which the first is given back to the device and taken again: it is the younger one, at
/// the lower address.
#[test]
fn equal_blocks_are_chosen_by_address_until_2_11_and_by_age_since() {
    let lowest = |minor| {
        let mut torch = torch(minor, 1 << 30);
        let first = alloc(&mut torch, 0, 30 * MIB);
        alloc(&mut torch, 1, 30 * MIB);
        torch.free(0);
        torch.empty_cache(None);
        assert_eq!(alloc(&mut torch, 2, 30 * MIB), first, "the same address, in a younger segment");
        torch.free(2);
        torch.free(1);
        alloc(&mut torch, 3, 30 * MIB) == first
    };
    assert_eq!([11, 12, 13, 15].map(lowest), [true, false, false, false]);
}

/// The older segment is split and joined again so that it is one block object, made after the younger segment. 2.12
/// ranks objects; since 2.13 a piece has the rank of its segment.
#[test]
fn the_age_is_that_of_the_object_in_2_12_and_of_the_segment_since() {
    let older = |minor| {
        let mut torch = torch(minor, 1 << 30);
        let old = alloc(&mut torch, 0, 12 * MIB);
        alloc(&mut torch, 1, 12 * MIB);
        torch.free(0);
        alloc(&mut torch, 2, 4 * MIB);
        alloc(&mut torch, 3, 8 * MIB);
        torch.free(3);
        // The front, which is the newer object, takes the rest in.
        torch.free(2);
        torch.free(1);
        alloc(&mut torch, 4, 12 * MIB) == old
    };
    assert_eq!([11, 12, 13, 14, 15].map(older), [true, false, true, true, true]);
}

#[test]
fn a_cap_is_cut_off_until_2_12_and_rounded_since() {
    // Half a byte below 40 MiB: rounded, the second segment of 20 MiB fits.
    let card = 1 << 30;
    let fraction = (40.0 * MIB as f64 - 0.5) / card as f64;
    for (minor, fits) in [(12, false), (13, true), (15, true)] {
        let mut torch = torch(minor, card);
        torch.set_fraction(fraction);
        alloc(&mut torch, 0, 20 * MIB);
        assert_eq!(torch.alloc(1, Bytes(20 * MIB), 0).is_ok(), fits, "2.{minor}");
    }
}

/// A cache of the default pool on a full card, and a request of a private pool that needs its memory.
fn request_in_a_pool(minor: u32, capturing: Option<bool>, lane: u16) -> bool {
    let mut torch = torch(minor, 64 * MIB);
    alloc(&mut torch, 0, 60 * MIB);
    torch.free(0);
    torch.set_capturing(capturing);
    torch.alloc(1, Bytes(20 * MIB), lane).is_ok()
}

#[test]
fn only_a_capture_keeps_the_cache_from_a_request_since_2_13() {
    for minor in [12, 13, 15] {
        assert!(!request_in_a_pool(minor, Some(true), 1), "2.{minor}, in a capture");
        assert!(request_in_a_pool(minor, Some(false), 1), "2.{minor}, outside of one");
        assert!(!request_in_a_pool(minor, None, 1), "2.{minor}: a graph's pool is used in captures");
    }
    // A recording has no captures: a user's pool held back until 2.12.
    assert!(!request_in_a_pool(12, None, 2));
    assert!(request_in_a_pool(13, None, 2));
}

#[test]
fn empty_cache_during_a_capture_leaves_the_default_pool_alone() {
    for (capturing, left) in [(Some(true), 20 * MIB), (Some(false), 0), (None, 0)] {
        let mut torch = torch(13, 1 << 30);
        alloc(&mut torch, 0, 20 * MIB);
        torch.free(0);
        torch.set_capturing(capturing);
        torch.empty_cache(None);
        assert_eq!(torch.stats().reserved.current, left, "{capturing:?}");
    }
}

#[test]
fn what_private_pools_hold_is_counted_by_pool_and_never_forgotten() {
    let mut torch = torch(13, 1 << 30);
    alloc(&mut torch, 0, 20 * MIB);
    torch.use_pool(USER);
    torch.alloc(1, Bytes(20 * MIB), 2).expect("room");
    torch.alloc(2, Bytes(512), 2).expect("room");
    let of = |torch: &Torch<SimDevice>| {
        let found = torch.reserved_by_private_pools().find(|(id, _)| *id == USER);
        found.map(|(_, reserved)| reserved).unwrap_or_default()
    };
    assert_eq!([of(&torch).all.current, of(&torch).small.current], [22 * MIB, 2 * MIB]);
    torch.free(1);
    torch.free(2);
    torch.release_pool(USER);
    torch.empty_cache(None);
    let gone = of(&torch);
    assert_eq!(
        [gone.all.current, gone.all.peak, gone.all.allocated, gone.all.freed],
        [0, 22 * MIB, 22 * MIB, 22 * MIB]
    );
    torch.reset_peaks();
    torch.reset_counts();
    assert_eq!(of(&torch), gapless_replay::torch::pools::PoolReserved::default());
}

#[test]
fn a_request_for_an_address_takes_what_lies_before_it_and_gives_it_back() {
    let mut torch = torch(13, 1 << 30);
    torch.keep_notes();
    let base = alloc(&mut torch, 0, 20 * MIB);
    torch.free(0);
    torch.take_notes();
    let wanted = DeviceAddr(base + 4 * MIB);
    let exact = torch.alloc_at(1, Bytes(8 * MIB), 0, wanted).expect("all of it is free");
    assert_eq!((exact.addr, exact.before), (wanted, Bytes(4 * MIB)));
    let stats = *torch.stats();
    assert_eq!((stats.allocations.current, stats.allocations.peak), (1, 2), "the front counts for a moment");
    assert_eq!((stats.allocated.current, stats.allocated.peak), (8 * MIB, 20 * MIB));
    let notes: Vec<_> = torch.take_notes().iter().map(|n| (n.kind, n.addr, n.size)).collect();
    assert_eq!(notes, [(NoteKind::FreeCompleted, base, 4 * MIB)]);
    // At a live block, at odd addresses and beyond the segment there is nothing to take; no memory is asked for.
    for addr in [wanted.0, wanted.0 + 512, base + 1, base + 40 * MIB] {
        assert_eq!(torch.alloc_at(2, Bytes(512 * 1024 * 3), 0, DeviceAddr(addr)), None, "{addr:#x}");
    }
    assert_eq!((torch.stats().segments.current, torch.stats().ooms), (1, 0));
    torch.free(1);
    assert_eq!(torch.stats().allocated.current, 0);
    assert_eq!(torch.segments()[0].blocks.len(), 1, "all one block again");
}

/// A bound of splitting does not hold for a request that names its address. The cut pieces stay: only whole segments go
/// back to the device.
#[test]
fn a_piece_that_an_address_cut_off_is_not_given_back_as_a_segment() {
    let mut torch = torch_with(13, "max_split_size_mb:20", 100 * MIB);
    let base = alloc(&mut torch, 0, 80 * MIB);
    torch.free(0);
    torch.alloc_at(1, Bytes(2 * MIB), 0, DeviceAddr(base + 4 * MIB)).expect("all of it is free");
    assert!(torch.alloc(2, Bytes(90 * MIB), 0).is_err(), "the card is full");
    assert_eq!(torch.stats().reserved.current, 80 * MIB);
}

#[test]
fn a_range_has_the_length_that_the_settings_say_since_2_15() {
    let card = 200 * MIB;
    let conf = "expandable_segments:True,expandable_segments_reserve:0.25";
    for (size, fits) in [(60 * MIB, true), (61 * MIB, false)] {
        let mut torch = torch_with(15, conf, card);
        assert_eq!(torch.alloc(0, Bytes(size), 0).is_ok(), fits, "{size}");
        assert_eq!(torch.stats().ooms, u64::from(!fits));
    }
    // A stream may have several ranges, and a class of its own.
    let mut torch = torch_with(15, conf, card);
    let (a, b) = (alloc(&mut torch, 0, 60 * MIB), alloc(&mut torch, 1, 60 * MIB));
    assert_eq!(b - a, 60 * MIB);
    let by_class = format!("{conf},expandable_segments_reserve_by_class:[wide:1]");
    let mut torch = torch_with(15, &by_class, card);
    torch.set_reserve_class(0, "wide");
    assert!(torch.alloc(0, Bytes(100 * MIB), 0).is_ok());
}

#[test]
fn a_range_that_is_too_short_goes_back_since_2_15() {
    let beyond = |minor| {
        let mut torch = torch_with(minor, "expandable_segments:True", 100 * MIB);
        assert!(torch.alloc(0, Bytes(150 * MIB), 0).is_err());
        let (first, next) = (torch.alloc(1, Bytes(20 * MIB), 0), torch.device_mut().reserve(2 * MIB));
        next - first.expect("room").0
    };
    // Each of the two attempts leaves a range behind, and the request uses the first.
    assert_eq!(beyond(14), 2 * 120 * MIB);
    assert_eq!(beyond(15), 120 * MIB);
}

/// Two free segments of 30 MiB. A request for an address in the second goes there, though the first is as good.
#[test]
fn a_recording_with_chosen_addresses_replays_to_the_byte() {
    let (first, second) = (0x7000_0000_0000, 0x7000_0000_0000 + 30 * MIB);
    let wanted = second + 8 * MIB;
    let mut device = DeviceTrace::new(0);
    let stream = device.stream_index(StreamId(0)).expect("few streams");
    for (action, addr, size) in [
        (Action::SegmentAlloc, first, 30),
        (Action::Alloc, first, 30),
        (Action::SegmentAlloc, second, 30),
        (Action::Alloc, second, 30),
        (Action::FreeRequested, first, 30),
        (Action::FreeCompleted, first, 30),
        (Action::FreeRequested, second, 30),
        (Action::FreeCompleted, second, 30),
        // The bytes before the address, and the request; the first goes back at once.
        (Action::Alloc, second, 8),
        (Action::Alloc, wanted, 22),
        (Action::FreeRequested, second, 8),
        (Action::FreeCompleted, second, 8),
        // A request without anything before its address.
        (Action::Alloc, second, 2),
    ] {
        let (addr, size) = (DeviceAddr(addr), Bytes(size * MIB));
        device.events.push(Event { action, addr, size, stream, ..Event::default() });
    }
    let misplaced = |exact: &[u32]| {
        let mut trace = Trace::default();
        trace.source.producer = "torch 2.13".to_owned();
        trace.source.torch_rules = true;
        let mut device = device.clone();
        device.exact = exact.iter().copied().map(EventIndex).collect();
        trace.devices.push(device);
        let history = History::rebuild(&trace, &trace.devices[0]).expect("a consistent recording");
        let script = Script::of(&trace, &trace.devices[0], &history);
        verify(&script, &TorchSettings::default(), TorchVersion(2, 13), &mut ()).misplaced
    };
    assert_eq!(misplaced(&[8, 9, 12]), 0);
    assert!(misplaced(&[]) > 0, "by the usual rules they land in the first segment");
}

/// The default pool's cache went back right before a user's pool took memory that would not have fitted beside it.
#[test]
fn a_request_of_a_users_pool_may_have_emptied_the_cache_since_2_13() {
    let emptied_by_the_program = |producer: &str, pool: PoolId| {
        let mut trace = Trace::default();
        trace.source.producer = producer.to_owned();
        trace.source.torch_rules = true;
        let mut device = DeviceTrace::new(0);
        let stream = device.stream_index(StreamId(0)).expect("few streams");
        let pool = device.pool_index(pool).expect("few pools");
        let base = 0x7000_0000_0000;
        for (action, size, pool) in [
            (Action::SegmentAlloc, 60, 0),
            (Action::Alloc, 60, 0),
            (Action::FreeRequested, 60, 0),
            (Action::FreeCompleted, 60, 0),
            (Action::SegmentFree, 60, 0),
            (Action::SegmentAlloc, 20, pool),
            (Action::Alloc, 20, pool),
        ] {
            let (addr, size) = (DeviceAddr(base), Bytes(size * MIB));
            device.events.push(Event { action, addr, size, stream, pool, ..Event::default() });
        }
        trace.devices.push(device);
        let history = History::rebuild(&trace, &trace.devices[0]).expect("a consistent recording");
        let script = Script::of(&trace, &trace.devices[0], &history);
        script.ops.iter().any(|op| matches!(op, Op::EmptyCache { .. }))
    };
    assert!(emptied_by_the_program("torch 2.12", USER));
    assert!(!emptied_by_the_program("torch 2.13", USER));
    assert!(emptied_by_the_program("torch 2.13", GRAPH));
}
