use super::*;
use crate::events::Event;
use crate::settings::AllocatorSettings;
use crate::testing::Dice;
use crate::trace::{Block, BlockState, Segment, SizeClass};
use crate::words::{DeviceAddr, StreamId};

const SEGMENT: u64 = 20 << 20;

/// A run of small requests over segments that are used from end to end, and its heap at the end.
fn run(seed: u64, events: usize) -> (Trace, DeviceTrace) {
    let mut dice = Dice::new(seed);
    let mut device = DeviceTrace::new(0);
    device.streams = vec![StreamId(0), StreamId(7)];
    let mut push = |action, addr, size, stream| {
        let (addr, size) = (DeviceAddr(addr), Bytes(size));
        device.events.push(Event { action, addr, size, stream, ..Event::default() });
        device.events.len()
    };
    let mut live: Vec<(u64, u64, u16)> = Vec::new();
    let (mut at, mut end) = (0, 0);
    loop {
        // The second stream begins late.
        let stream = u16::from(dice.below(3) == 0);
        let size = 1 + dice.below(200_000);
        if at + (1 << 20) > end {
            at = end + SEGMENT;
            end = at + SEGMENT;
            push(Action::SegmentAlloc, at, SEGMENT, 0);
        }
        let now = push(Action::Alloc, at, size, if at > 8 * SEGMENT { stream } else { 0 });
        live.push((at, size, stream));
        at += size.next_multiple_of(512);
        while live.len() > 40 {
            let (addr, size, _) = live.swap_remove(dice.below(live.len() as u64) as usize);
            push(Action::FreeRequested, addr, size, 0);
            if dice.below(9) == 0 {
                push(Action::Snapshot, 0, 0, 0);
            }
            push(Action::FreeCompleted, addr, size, 0);
        }
        if now >= events {
            break;
        }
    }
    let source = Source { torch_rules: true, ..Source::default() };
    (Trace { source, ..Trace::default() }, device)
}

/// The result of following the events in batches of `batch`.
fn follow(device: &DeviceTrace, batch: usize) -> Ahead {
    let mut follower = Follower::with_room_for(10);
    let mut events = Events::default();
    for event in device.events.iter() {
        events.push(event);
        if events.len() == batch {
            follower.follow(&mut events);
        }
    }
    follower.follow(&mut events);
    let (all, ahead) = follower.finish();
    assert!(all == device.events);
    ahead
}

#[track_caller]
fn assert_given_up(trace: &Trace, device: &DeviceTrace, what: &str) {
    assert!(follow(device, 100).history(trace, device).is_none(), "{what}");
    let ahead = Some(follow(device, 100));
    let (own, all) = (History::rebuild_from(trace, device, ahead), History::rebuild(trace, device));
    assert_eq!(format!("{own:?}"), format!("{all:?}"), "{what}");
}

#[test]
fn what_is_followed_in_batches_is_what_is_rebuilt_at_once() {
    for (seed, events) in [(1, 400), (2, 3000), (3, 70_000)] {
        let (trace, device) = run(seed, events);
        let whole = History::rebuild(&trace, &device).expect("a sound run");
        for batch in [1, 7, 1000, usize::MAX] {
            let followed = follow(&device, batch).history(&trace, &device).expect("as assumed");
            assert_eq!(format!("{followed:?}"), format!("{whole:?}"), "batches of {batch}");
        }
    }
}

#[test]
fn settings_that_size_blocks_otherwise_are_noticed() {
    let (mut trace, device) = run(4, 3000);
    let settings = AllocatorSettings::default();
    trace.settings = Some(AllocatorSettings { garbage_collection_threshold: 0.5, ..settings.clone() });
    assert!(follow(&device, 100).history(&trace, &device).is_some());
    for settings in [
        AllocatorSettings { max_split_size: Some(Bytes(30 << 20)), ..settings.clone() },
        AllocatorSettings { roundup_power2_divisions: [4; 16], ..settings.clone() },
        AllocatorSettings { expandable_segments: true, ..settings },
    ] {
        trace.settings = Some(settings);
        assert_given_up(&trace, &device, "settings");
    }
    trace.settings = None;
    trace.source.torch_rules = false;
    assert_given_up(&trace, &device, "another allocator");
}

#[test]
fn runs_that_are_not_as_assumed_are_noticed() {
    let (trace, whole) = run(5, 3000);
    let without = |left_out: &dyn Fn(usize, &Event) -> bool| {
        let mut device = DeviceTrace { events: Events::default(), ..whole.clone() };
        let kept = whole.events.iter().enumerate().filter(|(i, event)| !left_out(*i, event));
        kept.for_each(|(_, event)| device.events.push(event));
        device
    };
    assert_given_up(&trace, &without(&|_, e| e.action == Action::FreeRequested), "one free");
    assert_given_up(&trace, &without(&|_, e| e.action == Action::FreeCompleted), "one free");
    assert_given_up(&trace, &without(&|i, _| i < 100), "a recording that began late");
    assert_given_up(&trace, &without(&|_, e| e.action == Action::SegmentAlloc), "no segments");
    let mut twice = whole.clone();
    whole.events.iter().for_each(|event| twice.events.push(event));
    assert_given_up(&trace, &twice, "a recording that begins again");
    let mut other = whole.clone();
    other.segments.push(Segment {
        addr: DeviceAddr(3 << 40),
        size: Bytes(SEGMENT),
        stream: 0,
        pool: 0,
        class: SizeClass::Large,
        expandable: false,
        stack: crate::stacks::StackId::NONE,
        first_block: 0,
        block_count: 1,
    });
    other.blocks.push(Block {
        addr: DeviceAddr(3 << 40),
        size: Bytes(SEGMENT),
        requested: Bytes(SEGMENT),
        state: BlockState::Live,
        stack: crate::stacks::StackId::NONE,
    });
    assert_given_up(&trace, &other, "a heap at the end that the events do not lead to");
    let nothing = DeviceTrace::new(0);
    assert!(follow(&nothing, 1).history(&trace, &nothing).is_none());
}
