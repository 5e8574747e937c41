//! A small trace with all cases that exporters must handle: two streams, stacks with awkward names, a pending free, a
//! failed request, segments, annotations out of step with each other, and a second device without a clock.

use crate::{DeviceView, View};
use gapless_trace::stacks::Frame;
use gapless_trace::steps::StepSpan;
use gapless_trace::{
    Action, Annotation, Bytes, DeviceAddr, DeviceTrace, Event, History, Micros, Stage, StreamId, Tick, Trace,
};

pub(crate) struct Sample {
    pub(crate) trace: Trace,
    pub(crate) histories: Vec<History>,
    pub(crate) base: u64,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) steps: Vec<StepSpan>,
}

impl Sample {
    pub(crate) fn new() -> Sample {
        let mut trace = Trace::default();
        trace.source.torch_rules = true;
        let mut frame = |name: &str, file: &str, line| {
            let (name, file) = (trace.strings.intern(name), trace.strings.intern(file));
            trace.frames.intern(Frame { name, file, line })
        };
        let frames = [frame("forward", "a \"quoted\", file.py", 7), frame("main\nloop", "train.py", 1)];
        let stack = trace.stacks.intern(&frames);
        let base = 0x7f16_4000_0000u64;

        let mut first = DeviceTrace::new(0);
        first.streams = vec![StreamId(0), StreamId(0x55)];
        let mut time = 1_000_000;
        let mut add = |action, offset, size, stream, stack| {
            first.events.push(Event {
                action,
                addr: DeviceAddr(base + offset),
                size: Bytes(size),
                stream,
                time: Micros(time),
                stack,
                ..Event::default()
            });
            time += 10;
        };
        let none = gapless_trace::StackId::NONE;
        add(Action::SegmentAlloc, 0, 2 << 20, 0, none);
        add(Action::Alloc, 0, 1000, 0, stack);
        add(Action::Alloc, 1024, 512, 0, none);
        add(Action::FreeRequested, 0, 1000, 0, stack);
        add(Action::FreeCompleted, 0, 1000, 0, stack);
        add(Action::Oom, 0, 1 << 40, 0, none);
        add(Action::SegmentAlloc, 32 << 20, 20 << 20, 1, none);
        add(Action::Alloc, 32 << 20, 5 << 20, 1, none);
        add(Action::FreeRequested, 32 << 20, 5 << 20, 1, none);
        trace.devices.push(first);

        let mut second = DeviceTrace::new(1);
        second.streams = vec![StreamId(0)];
        for i in 0..50 {
            second.events.push(Event {
                addr: DeviceAddr(base + (i << 21)),
                size: Bytes((i + 1) << 12),
                ..Event::default()
            });
        }
        trace.devices.push(second);

        for (name, stage, time) in [
            ("step \u{1}\"1\"", Stage::Start, 1_000_000),
            ("inner", Stage::Start, 1_000_020),
            ("step \u{1}\"1\"", Stage::End, 1_000_050),
            ("inner", Stage::End, 1_000_060),
            ("never ends", Stage::Start, 1_000_070),
            ("never began", Stage::End, 1_000_075),
        ] {
            let name = trace.strings.intern(name);
            trace.annotations.push(Annotation { name, stage, device: 0, time: Micros(time) });
        }
        let histories = trace.devices.iter().map(|d| History::rebuild(&trace, d).unwrap()).collect();
        Sample {
            trace,
            histories,
            base,
            kinds: vec!["weights", "activations", "temporary"],
            steps: vec![StepSpan { start: Tick(0), end: Tick(6) }],
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        let device = |i: usize| DeviceView::new(&self.trace.devices[i], &self.histories[i]);
        let first = DeviceView { kinds: Some(&self.kinds), steps: &self.steps, ..device(0) };
        View { trace: &self.trace, devices: vec![first, device(1)] }
    }
}
