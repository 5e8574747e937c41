//! Round trips of random traces, every truncation and every flipped bit of a small file, and files made to hurt.

use super::layout::{BlockHeader, HEADER_LEN, Kind, LZ4, NO_DEVICE, STORED, checksum};
use super::*;
use crate::events::{Action, Event};
use crate::settings::AllocatorSettings;
use crate::stacks::{Frame, FrameId, StackId};
use crate::strings::StringId;
use crate::trace::{
    Annotation, Block, BlockNote, BlockState, DeviceTrace, HostMemory, Note, Segment, SizeClass, Source,
    Stage, Trace,
};
use crate::words::{Bytes, DeviceAddr, EventIndex, Micros, PoolId, StreamId, Tick};
use proptest::prelude::*;

/// A small random number generator, so that one seed is one trace.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn any(&mut self) -> u64 {
        (self.below(1 << 31) << 33 | self.below(1 << 31)) >> self.below(64)
    }
}

/// Anything that a trace may hold, sensible or not.
fn random_trace(seed: u64, devices: u32, events: u64) -> Trace {
    let dice = &mut Dice(seed);
    let mut trace = Trace::default();
    for i in 0..dice.below(30) {
        trace.strings.intern(&format!("{}\u{1f4a9}\n\"{i}", "x".repeat(dice.below(40) as usize)));
    }
    let strings = trace.strings.len() as u64;
    let string = |dice: &mut Dice| StringId(dice.below(strings) as u32);
    for _ in 0..dice.below(40) {
        let frame = Frame { name: string(dice), file: string(dice), line: dice.any() as u32 };
        trace.frames.intern(frame);
    }
    for _ in 0..if trace.frames.is_empty() { 0 } else { dice.below(60) } {
        let depth = 1 + dice.below(12);
        let stack: Vec<FrameId> =
            (0..depth).map(|_| FrameId(dice.below(trace.frames.len() as u64) as u32)).collect();
        trace.stacks.intern(&stack);
    }
    let stacks = trace.stacks.len() as u64;
    for device in 0..devices {
        let mut this = DeviceTrace::new(device * 3);
        this.streams = (0..1 + dice.below(5)).map(|i| StreamId(dice.any() ^ i)).collect();
        this.pools.extend((0..dice.below(4)).map(|i| PoolId(i + 1, dice.any())));
        let optional = [dice.one_in(2), dice.one_in(3), dice.one_in(3), dice.one_in(3)];
        let mut event = Event { time: Micros(dice.any()), ..Event::default() };
        let backwards = dice.one_in(2);
        for _ in 0..dice.below(events + 1) {
            event.action = Action::ALL[dice.below(9) as usize];
            if !dice.one_in(3) {
                event.addr = DeviceAddr(0x7f00_0000_0000 + 512 * dice.below(64));
                event.size = Bytes(512 << dice.below(3));
            }
            if dice.one_in(8) {
                event.addr = DeviceAddr(dice.any() >> 1);
                event.size = Bytes(dice.any() >> 4);
            }
            event.stream = dice.below(this.streams.len() as u64) as u16;
            event.stack = StackId(dice.below(stacks) as u32);
            if optional[0] {
                event.pool = dice.below(this.pools.len() as u64) as u16;
            }
            if optional[1] && dice.one_in(4) {
                event.compile_context = string(dice);
            }
            if optional[2] && dice.one_in(4) {
                event.user_metadata = string(dice);
            }
            if optional[3] && dice.one_in(4) {
                event.forward_stack = StackId(dice.below(stacks) as u32);
            }
            let later = dice.any() >> 40;
            event.time =
                Micros(if backwards { event.time.0.wrapping_sub(later) } else { event.time.0 + later });
            this.events.push(event);
        }
        let mut tick = 0;
        for _ in 0..dice.below(12) {
            tick = (tick + dice.below(9)).min(this.events.len() as u64);
            let addr = DeviceAddr(dice.any());
            this.notes.push(BlockNote { tick: Tick(tick as u32), addr, text: string(dice) });
        }
        let events = this.events.len() as u32;
        this.exact = (0..events).filter(|_| dice.one_in(9)).map(EventIndex).collect();
        random_final_state(dice, &mut this, stacks);
        trace.devices.push(this);
    }
    for i in 0..dice.below(20) {
        trace.annotations.push(Annotation {
            name: string(dice),
            stage: if i % 2 == 0 { Stage::Start } else { Stage::End },
            device: dice.any() as u32,
            time: Micros(dice.any()),
        });
    }
    trace.host = dice.one_in(2).then(|| HostMemory {
        events: dice.below(9),
        blocks: dice.below(9),
        held: Bytes(dice.any() >> 4),
        in_use: Bytes(dice.any() >> 5),
        peak_held: Bytes(dice.any() >> 4),
        peak_in_use: Bytes(dice.any() >> 4),
    });
    trace.source = Source {
        format: "PyTorch snapshot (pickle protocol 4)".to_owned(),
        producer: "torch 2.11".to_owned(),
        torch_rules: dice.one_in(2),
        notes: (0..dice.below(3))
            .map(|i| Note { code: "ring-incomplete", text: format!("note {i}") })
            .collect(),
    };
    trace.settings = dice.one_in(2).then(|| AllocatorSettings {
        conf: "expandable_segments:True".to_owned(),
        max_split_size: dice.one_in(2).then(|| Bytes(dice.any() >> 1)),
        garbage_collection_threshold: dice.below(100) as f64 / 100.0,
        expandable_segments: dice.one_in(2),
        roundup_power2_divisions: std::array::from_fn(|_| dice.below(9) as u32),
        other: vec![("pinned_num_register_threads".to_owned(), "1".to_owned())],
    });
    trace
}

fn random_final_state(dice: &mut Dice, device: &mut DeviceTrace, stacks: u64) {
    for i in 0..dice.below(5) {
        let (addr, count) = (0x7f00_0000_0000 + (i << 21), dice.below(6) as u32);
        device.segments.push(Segment {
            addr: DeviceAddr(addr),
            size: Bytes(1 << 20),
            stream: dice.below(device.streams.len() as u64) as u16,
            pool: dice.below(device.pools.len() as u64) as u16,
            class: if dice.one_in(2) { SizeClass::Small } else { SizeClass::Large },
            expandable: dice.one_in(2),
            stack: StackId(dice.below(stacks) as u32),
            first_block: device.blocks.len() as u32,
            block_count: count,
        });
        for b in 0..u64::from(count) {
            device.blocks.push(Block {
                addr: DeviceAddr(addr + b * 4096),
                size: Bytes(4096),
                requested: Bytes(dice.below(5000)),
                state: [BlockState::Live, BlockState::Pending, BlockState::Free][dice.below(3) as usize],
                stack: StackId(dice.below(stacks) as u32),
            });
        }
    }
    // Segments may be sorted after their blocks were laid down.
    if dice.one_in(2) {
        device.segments.reverse();
    }
}

fn written(trace: &Trace) -> Vec<u8> {
    write_trace(trace, Vec::new(), Options { block_events: 50 }).unwrap()
}

/// All differences but for the notes.
fn differences(a: &Trace, b: &Trace) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut check = |same: bool, what| {
        if !same {
            found.push(what);
        }
    };
    check(
        (&a.source.format, &a.source.producer, a.source.torch_rules)
            == (&b.source.format, &b.source.producer, b.source.torch_rules),
        "source",
    );
    check(a.strings.iter().eq(b.strings.iter()), "strings");
    check(a.frames.iter().eq(b.frames.iter()), "frames");
    let stacks = |t: &Trace| -> Vec<Vec<FrameId>> {
        (0..t.stacks.len() as u32).map(|i| t.stacks.get(StackId(i)).to_vec()).collect()
    };
    check(stacks(a) == stacks(b), "stacks");
    check(a.annotations == b.annotations, "annotations");
    check(a.settings == b.settings, "settings");
    check(a.host == b.host, "host");
    check(a.devices.len() == b.devices.len(), "devices");
    for (a, b) in a.devices.iter().zip(&b.devices) {
        check(a.device == b.device, "device number");
        check(a.events == b.events, "events");
        check(a.streams == b.streams, "streams");
        check(a.pools == b.pools, "pools");
        check(a.segments == b.segments, "segments");
        check(a.blocks == b.blocks, "blocks");
        check(a.notes == b.notes, "notes on blocks");
        check(a.exact == b.exact, "chosen addresses");
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_trace_comes_back_whole(seed: u64, devices in 0u32..4, events in 0u64..400) {
        let trace = random_trace(seed, devices, events);
        let bytes = written(&trace);
        for read in [read(&bytes).unwrap(), read_from(bytes.as_slice()).unwrap()] {
            prop_assert_eq!(differences(&trace, &read), Vec::<&str>::new());
            prop_assert_eq!(&trace.source.notes, &read.source.notes);
        }
        prop_assert_eq!(bytes, written(&trace), "the same trace gives the same bytes");
    }

    #[test]
    fn random_payloads_under_a_sound_checksum_never_panic(seed: u64, kind in 1u8..13, len in 0u64..200) {
        let dice = &mut Dice(seed);
        let mut bytes = written(&random_trace(3, 1, 60));
        let walked: Vec<BlockHeader> = Blocks::new(&bytes).unwrap().map(|b| b.unwrap().header).collect();
        let last = walked.last().unwrap();
        bytes.truncate(bytes.len() - last.block_len() as usize);
        // Mostly small numbers: those get past the first checks.
        let payload: Vec<u8> = (0..len).map(|_| (dice.any() as u8) >> dice.below(8)).collect();
        let device = if (4..=6).contains(&kind) || kind == 8 || kind == 9 { 0 } else { NO_DEVICE };
        for first in [0, 1, walked.iter().filter(|h| h.kind == kind).map(|h| u64::from(h.count)).sum()] {
            let mut file = bytes.clone();
            push_block(&mut file, BlockHeader {
                kind, codec: u8::from(dice.one_in(2)), count: dice.below(9) as u32, first, device,
                number: last.number, raw_len: payload.len() as u32, ..no_header()
            }, &payload);
            let _ = read(&file);
        }
    }

    #[test]
    fn changed_content_under_sound_checksums_never_panics(seed: u64, changes in 1u64..4) {
        let dice = &mut Dice(seed);
        let bytes = written(&random_trace(dice.below(8), 2, 90));
        let blocks: Vec<BlockRef<'_>> = Blocks::new(&bytes).unwrap().map(Result::unwrap).collect();
        let changed = dice.below(blocks.len() as u64) as usize;
        let mut file = empty_file();
        for (i, block) in blocks.iter().enumerate() {
            let (mut header, stored) = (block.header, block.payload().unwrap());
            let mut content = match header.codec {
                LZ4 => lz4_flex::block::decompress(stored, header.raw_len as usize).unwrap(),
                _ => stored.to_vec(),
            };
            header.codec = STORED;
            if i == changed && !content.is_empty() {
                for _ in 0..changes {
                    let at = dice.below(content.len() as u64) as usize;
                    content[at] = (dice.any() as u8) >> dice.below(8);
                }
            }
            push_block(&mut file, header, &content);
        }
        let (whole, streamed) = (read(&file), read_from(file.as_slice()));
        match (whole, streamed) {
            (Ok(whole), Ok(streamed)) => prop_assert_eq!(differences(&whole, &streamed), Vec::<&str>::new()),
            (whole, streamed) => {
                prop_assert_eq!(whole.unwrap_err().to_string(), streamed.unwrap_err().to_string());
            }
        }
    }
}

fn no_header() -> BlockHeader {
    BlockHeader {
        kind: 0,
        codec: STORED,
        payload_len: 0,
        raw_len: 0,
        count: 0,
        device: NO_DEVICE,
        first: 0,
        number: 0,
        time: 0,
        payload_sum: 0,
    }
}

/// Appends a block with correct checksums and any other faults.
fn push_block(file: &mut Vec<u8>, header: BlockHeader, payload: &[u8]) {
    let mut padded = payload.to_vec();
    padded.resize(payload.len().next_multiple_of(8), 0);
    let header = BlockHeader { payload_len: payload.len() as u32, payload_sum: checksum(&padded), ..header };
    file.extend_from_slice(&header.encode());
    file.extend_from_slice(&padded);
}

fn empty_file() -> Vec<u8> {
    Writer::new(Vec::new()).unwrap().finish().unwrap()[..8].to_vec()
}

/// A small file that has every kind of block.
fn small() -> (Trace, Vec<u8>) {
    let (trace, bytes) = (0..)
        .map(|seed| random_trace(seed, 2, 130))
        .map(|trace| (written(&trace), trace))
        .map(|(bytes, trace)| (trace, bytes))
        .find(|(trace, bytes)| {
            let kinds = Blocks::new(bytes).unwrap().map(|b| b.unwrap().header.kind);
            let kinds: std::collections::BTreeSet<u8> = kinds.collect();
            kinds.len() == 12 && trace.devices.iter().all(|d| d.events.len() > 60)
        })
        .unwrap();
    (trace, bytes)
}

fn code(trace: &Trace) -> Option<&'static str> {
    trace.source.notes.iter().map(|n| n.code).find(|code| code.starts_with("gtrace-"))
}

#[test]
fn every_prefix_of_a_file_reads_up_to_its_last_whole_block() {
    let (whole, bytes) = small();
    let ends: Vec<u64> =
        Blocks::new(&bytes).unwrap().map(|b| b.map(|b| b.offset + b.header.block_len()).unwrap()).collect();
    let mut before = vec![0; whole.devices.len()];
    let mut cut = 0;
    for len in 0..bytes.len() {
        let prefix = &bytes[..len];
        if len < 8 {
            assert!(matches!(read(prefix), Err(GtraceError::TooShort { .. })), "{len}");
            assert!(matches!(read_from(prefix), Err(GtraceError::TooShort { .. })), "{len}");
            continue;
        }
        let trace = read(prefix).unwrap();
        let on_border = len == 8 || ends.contains(&(len as u64));
        assert_eq!(code(&trace), Some(if on_border { "gtrace-unfinished" } else { "gtrace-torn" }), "{len}");
        let streamed = read_from(prefix).unwrap();
        assert_eq!(differences(&trace, &streamed), [""; 0]);
        assert_eq!(trace.source.notes, streamed.source.notes);

        for (i, device) in trace.devices.iter().enumerate() {
            let full = &whole.devices[i];
            assert!(device.events.iter().eq(full.events.iter().take(device.events.len())));
            assert!(device.events.len() >= before[i]);
            before[i] = device.events.len();
            // The final state is whole or not there: half of one would contradict the events.
            let whole = device.segments == full.segments && device.blocks == full.blocks;
            let absent = device.segments.is_empty() && device.blocks.is_empty();
            assert!(whole || absent);
            cut += usize::from(trace.source.notes.iter().any(|n| n.code == "gtrace-final-state-cut"));
        }
        // Every whole block of events is there.
        let in_blocks: u32 = Blocks::new(prefix)
            .unwrap()
            .map(|b| b.unwrap().header)
            .filter(|h| h.kind == Kind::Events as u8)
            .map(|h| h.count)
            .sum();
        assert_eq!(trace.devices.iter().map(|d| d.events.len()).sum::<usize>(), in_blocks as usize);
    }
    assert!(cut > 0, "a prefix that ends between segments and their blocks says so");
    assert_eq!(code(&read(&bytes).unwrap()), None);
    assert!(before.iter().zip(&whole.devices).all(|(&n, d)| n == d.events.len()));
}

#[test]
fn every_flipped_bit_is_found_and_its_block_named() {
    let (_, bytes) = small();
    let starts: Vec<u64> = Blocks::new(&bytes).unwrap().map(|b| b.unwrap().offset).collect();
    for at in 0..bytes.len() {
        let block = starts.partition_point(|&s| s <= at as u64).saturating_sub(1) as u64;
        for flip in [1u8 << (at % 8), 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            for error in [read(&bytes).map(|_| ()).unwrap_err(), read_from(bytes.as_slice()).unwrap_err()] {
                match error {
                    GtraceError::NotGtrace => assert!(at < 6),
                    GtraceError::Version { .. } => assert!((6..8).contains(&at)),
                    GtraceError::Corrupt { block: named, offset, .. } => {
                        assert_eq!((named, offset), (block, starts[block as usize]), "byte {at}");
                    }
                    other => panic!("byte {at}, bits {flip:#x}: {other}"),
                }
            }
        }
    }
}

#[test]
fn a_lost_or_doubled_block_is_found() {
    let (_, bytes) = small();
    let blocks: Vec<(usize, usize)> = Blocks::new(&bytes)
        .unwrap()
        .map(|b| b.map(|b| (b.offset as usize, (b.offset + b.header.block_len()) as usize)).unwrap())
        .collect();
    let (from, to) = blocks[3];
    let lost = [&bytes[..from], &bytes[to..]].concat();
    let doubled = [&bytes[..to], &bytes[from..]].concat();
    for (file, block) in [(lost, 3), (doubled, 4)] {
        assert!(matches!(read(&file), Err(GtraceError::Corrupt { block: b, .. }) if b == block));
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(read(&longer), Err(GtraceError::Corrupt { .. })));
    assert!(matches!(read_from(longer.as_slice()), Err(GtraceError::Corrupt { .. })));
}

#[test]
fn a_file_grown_in_advance_reads_up_to_the_zeros() {
    let (_, bytes) = small();
    let cut = Blocks::new(&bytes).unwrap().nth(9).unwrap().unwrap().offset as usize;
    for zeros in [8, 64, 5000] {
        let mut file = bytes[..cut].to_vec();
        file.resize(cut + zeros, 0);
        let (all, streamed) = (read(&file).unwrap(), read_from(file.as_slice()).unwrap());
        assert_eq!(code(&all), Some("gtrace-torn"));
        assert_eq!(differences(&all, &streamed), [""; 0]);
        assert_eq!(differences(&all, &read(&bytes[..cut]).unwrap()), [""; 0]);
        *file.last_mut().unwrap() = 1;
        assert!(read(&file).is_err() && read_from(file.as_slice()).is_err());
    }
}

#[test]
fn a_finished_file_has_an_index_of_all_its_blocks() {
    let (_, bytes) = small();
    let walked: Vec<(u64, BlockHeader)> =
        Blocks::new(&bytes).unwrap().map(|b| b.map(|b| (b.offset, b.header)).unwrap()).collect();
    assert!(walked.iter().all(|(offset, _)| offset % 8 == 0));
    let indexed = index(&bytes).unwrap().unwrap();
    assert_eq!(indexed[..], walked[..walked.len() - 1]);
    assert!(index(&bytes[..bytes.len() - 8]).unwrap().is_none());
}

#[test]
fn a_bomb_is_refused_before_memory_is_taken_for_it() {
    let zeros = vec![0u8; 60 << 20];
    let packed = lz4_flex::block::compress(&zeros);
    let mut file = empty_file();
    let header = BlockHeader { codec: LZ4, raw_len: zeros.len() as u32, device: 0, ..no_header() };
    push_block(
        &mut file,
        BlockHeader { kind: Kind::Streams as u8, count: 1, raw_len: 1, codec: 0, ..header },
        &[0],
    );
    let count = zeros.len() as u32 - 64;
    push_block(&mut file, BlockHeader { kind: Kind::Events as u8, count, number: 1, ..header }, &packed);
    assert!(matches!(read(&file), Err(GtraceError::TooLarge { block: 1, .. })));

    let mut file = empty_file();
    let lie =
        BlockHeader { kind: Kind::Strings as u8, codec: LZ4, raw_len: 60 << 20, count: 1, ..no_header() };
    push_block(&mut file, BlockHeader { first: 1, ..lie }, &[0; 16]);
    assert!(matches!(read(&file), Err(GtraceError::Malformed { block: 0, offset: 8, .. })));

    let mut file = empty_file();
    push_block(&mut file, BlockHeader { raw_len: u32::MAX, ..lie }, &[0; 16]);
    assert!(matches!(read(&file), Err(GtraceError::TooLarge { block: 0, .. })));

    // A stream that never ends is not read into memory either.
    let mut file = empty_file();
    file.extend_from_slice(&BlockHeader { payload_len: u32::MAX, ..lie }.encode());
    assert!(matches!(read(&file), Err(GtraceError::TooLarge { block: 0, .. })));
    let endless = std::io::Read::chain(file.as_slice(), std::io::repeat(1));
    assert!(matches!(read_from(endless), Err(GtraceError::TooLarge { block: 0, .. })));
}

#[test]
fn what_cannot_be_is_an_error_that_says_what() {
    let tables_then = |kind: Kind, device, count, first, payload: &[u8]| {
        let mut file = empty_file();
        let header = BlockHeader { count: 1, first: 1, ..no_header() };
        push_block(&mut file, BlockHeader { kind: Kind::Strings as u8, raw_len: 2, ..header }, b"\x01a");
        let header = BlockHeader { number: 1, first: 0, device: 0, ..header };
        push_block(&mut file, BlockHeader { kind: Kind::Streams as u8, raw_len: 1, ..header }, &[7]);
        let raw_len = payload.len() as u32;
        let header =
            BlockHeader { kind: kind as u8, number: 2, raw_len, device, count, first, ..no_header() };
        push_block(&mut file, header, payload);
        match read(&file) {
            Err(GtraceError::Malformed { block: 2, what, .. }) => what,
            other => panic!("{kind:?}: {other:?}"),
        }
    };
    let none = NO_DEVICE;
    assert_eq!(tables_then(Kind::Frames, none, 1, 0, &[1, 2, 0]), "string 2 of 2");
    assert_eq!(tables_then(Kind::Stacks, none, 1, 1, &[1, 0]), "stack 1 has frame 0 of 0");
    assert_eq!(tables_then(Kind::Stacks, none, 1, 1, &[0]), "stack 1 is stack 0 again");
    assert_eq!(tables_then(Kind::Strings, none, 1, 2, b"\x01a"), "string 2 is string 1 again");
    assert_eq!(tables_then(Kind::Strings, none, 1, 2, b"\x01\xff"), "a text is not UTF-8");
    assert_eq!(tables_then(Kind::Strings, none, 1, 5, b"\x01b"), "it begins with string 5, and 2 are known");
    assert_eq!(tables_then(Kind::Annotations, none, 1, 0, &[9, 0, 0, 0]), "string 9 of 2");
    assert_eq!(tables_then(Kind::Segments, 0, 1, 0, &[1, 0, 0, 1, 1, 0, 0, 0, 0, 0]), "stream 1 of 1");
    assert_eq!(
        tables_then(Kind::Blocks, 0, 1, 0, &[0, 1, 0, 2, 0]),
        "more blocks than the device's segments have"
    );
    assert_eq!(tables_then(Kind::BlockNotes, 0, 1, 0, &[1, 0, 0]), "a note after 1 of 0 events");
    assert_eq!(tables_then(Kind::BlockNotes, 0, 1, 0, &[0, 0, 9]), "string 9 of 2");
    assert_eq!(tables_then(Kind::ExactAddresses, 0, 1, 0, &[0]), "a chosen address of event 0 of 0");
    assert_eq!(tables_then(Kind::Streams, none, 1, 0, &[1]), "device 4294967295 in a block of kind Streams");
    let events = |control: u8, sizes: u8, streams: &[u8]| {
        let mut payload = vec![0, 0, 0, 0, sizes, streams.len() as u8, 0, 0, 0, 0, 0, control];
        payload.extend(vec![1; sizes as usize]);
        payload.extend(streams);
        tables_then(Kind::Events, 0, 1, 0, &payload)
    };
    let all_same = 0x10 | 0x40 | 0x80;
    assert_eq!(events(all_same | 9, 1, &[]), "9 is not the number of an action");
    assert_eq!(events(all_same, 0, &[]), "the payload ends before its last entry");
    assert_eq!(events(all_same, 2, &[]), "1 byte(s) left over");
    assert!(events(0x70, 0, &[]).starts_with("an event refers to an earlier one at 0x0"));
    assert!(events(0x50, 1, &[1, 0]).starts_with("event 0 of device 0 refers to"));
    assert!(events(0x50, 1, &[0, 1]).starts_with("event 0 of device 0 refers to"));
}

#[test]
fn the_process_of_a_recording_is_kept_and_an_unknown_one_is_not_written() {
    let mut trace = random_trace(7, 1, 20);
    let without = written(&trace);
    assert!(!read(&without).unwrap().process.is_known());
    trace.process.program = "python train.py".to_owned();
    trace.process.rank = Some(3);
    let with = written(&trace);
    assert!(with.len() > without.len());
    let back = read(&with).unwrap();
    assert_eq!(back.process, trace.process);
    assert!(back.source.notes.iter().all(|note| note.code != "gtrace-newer"));
    let mut wrong = empty_file();
    push_block(&mut wrong, BlockHeader { kind: Kind::Process as u8, raw_len: 3, ..no_header() }, &[9, 9, 9]);
    assert!(matches!(read(&wrong), Err(GtraceError::Malformed { .. })));
}

#[test]
fn kinds_from_128_on_are_skipped_with_a_note_and_others_are_an_error() {
    let mut file = empty_file();
    push_block(&mut file, BlockHeader { kind: 200, ..no_header() }, &[1, 2, 3]);
    assert!(read(&file).unwrap().source.notes.iter().any(|n| n.code == "gtrace-newer"));
    push_block(&mut file, BlockHeader { kind: 90, number: 1, ..no_header() }, &[1, 2, 3]);
    assert!(matches!(read(&file), Err(GtraceError::UnknownKind { block: 1, kind: 90, .. })));
}

#[test]
fn batches_with_tables_that_grow_give_the_whole_trace() {
    let mut whole = Trace::default();
    let mut device = DeviceTrace::new(2);
    let mut writer = Writer::new(Vec::new()).unwrap();
    for i in 0..40u64 {
        let mut batch = Vec::new();
        for j in 0..i {
            let name = whole.strings.intern(&format!("f{}", i / 3));
            let frame = whole.frames.intern(Frame { name, file: name, line: (j / 5) as u32 });
            batch.push(Event {
                addr: DeviceAddr(512 * j),
                size: Bytes(i),
                stream: device.stream_index(StreamId(i / 7)).unwrap(),
                pool: device.pool_index(PoolId(0, i / 11)).unwrap(),
                stack: whole.stacks.intern(&[frame]),
                user_metadata: name,
                ..Event::default()
            });
        }
        let tables = Tables { strings: &whole.strings, frames: &whole.frames, stacks: &whole.stacks };
        let appended =
            EventBatch { device: 2, streams: &device.streams, pools: &device.pools, events: &batch };
        writer.append(&appended, tables).unwrap();
        batch.iter().for_each(|&event| device.events.push(event));

        // A batch that was refused leaves the file sound.
        let unknown = Event { stack: StackId(9999), ..Event::default() };
        let large = Event { size: Bytes(u64::MAX), ..Event::default() };
        for bad in [unknown, large] {
            let refused = writer.append(&EventBatch { events: &[bad], ..appended }, tables);
            assert!(matches!(refused, Err(GtraceError::Unwritable(_))));
        }
    }
    whole.devices.push(device);
    assert_eq!(differences(&whole, &read(&writer.finish().unwrap()).unwrap()), [""; 0]);
}

#[test]
fn a_block_is_one_write_call_and_nothing_follows_a_failed_one() {
    #[derive(Default)]
    struct Disk {
        calls: Vec<usize>,
        room: usize,
    }
    impl std::io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.calls.len() == self.room {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.calls.push(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (trace, bytes) = small();
    let options = Options { block_events: 50 };
    let disk = write_trace(&trace, Disk { room: usize::MAX, ..Disk::default() }, options).unwrap();
    let lens = Blocks::new(&bytes).unwrap().map(|b| b.unwrap().header.block_len() as usize);
    assert!(std::iter::once(8).chain(lens).eq(disk.calls));

    let mut writer = Writer::new(Disk { room: 2, ..Disk::default() }).unwrap();
    writer.source(&trace.source).unwrap();
    assert!(matches!(writer.source(&trace.source), Err(GtraceError::Io(_))));
    assert!(matches!(writer.source(&trace.source), Err(GtraceError::Poisoned)));
    assert!(matches!(writer.finish(), Err(GtraceError::Poisoned)));
}

#[test]
fn a_million_events_come_back() {
    let mut trace = Trace::default();
    let mut device = DeviceTrace::new(0);
    device.streams.push(StreamId(0));
    let dice = &mut Dice(5);
    for i in 0..1_000_000u64 {
        device.events.push(Event {
            action: Action::ALL[dice.below(3) as usize],
            addr: DeviceAddr(0x7f00_0000_0000 + 512 * dice.below(100_000)),
            size: Bytes(dice.below(1 << 26)),
            time: Micros(i),
            ..Event::default()
        });
    }
    trace.devices.push(device);
    let bytes = write_trace(&trace, Vec::new(), Options::default()).unwrap();
    assert_eq!(differences(&trace, &read(&bytes).unwrap()), [""; 0]);
    assert_eq!(
        Blocks::new(&bytes).unwrap().count(),
        1 + 1 + 1 + 16 + 1,
        "source, streams, pools, events, end"
    );
    assert_eq!(HEADER_LEN % 8, 0);
}
