//! A simulated run as a trace whose stacks read like the model: operator, kind of layer, part, phase. What the report's page groups by.

use crate::eager::{Layer, Log, Phase, Scope, Steps};
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, Frame, Micros, Source, StackId, StreamId, Trace,
};
use std::collections::HashMap;

/// The run as a trace; one microsecond an event.
#[must_use]
pub fn trace(steps: &Steps) -> Trace {
    let mut trace = Trace {
        source: Source {
            format: "a step simulated from a model's description".to_owned(),
            producer: "gapless fit".to_owned(),
            torch_rules: true,
            notes: Vec::new(),
        },
        ..Trace::default()
    };
    let mut device = DeviceTrace::new(0);
    device.stream_index(StreamId(0));
    let log = &steps.log;
    let mut at = 1u64 << 40;
    let mut addresses = Vec::with_capacity(log.allocations.len());
    for allocation in &log.allocations {
        addresses.push(at);
        at += Log::rounded(allocation.bytes);
    }
    let mut known: HashMap<(Scope, Layer, Phase, &'static str), StackId> = HashMap::new();
    for (time, event) in log.events.iter().enumerate() {
        let allocation = &log.allocations[event.slot() as usize];
        let key = (allocation.scope, allocation.layer, allocation.phase, allocation.op);
        let stack = *known.entry(key).or_insert_with(|| {
            let place = trace.strings.intern("model");
            let frames: Vec<_> = names(key)
                .into_iter()
                .map(|name| {
                    let name = trace.strings.intern(&name);
                    trace.frames.intern(Frame { name, file: place, line: 0 })
                })
                .collect();
            trace.stacks.intern(&frames)
        });
        let mut push = |action| {
            device.events.push(Event {
                action,
                addr: DeviceAddr(addresses[event.slot() as usize]),
                size: Bytes(allocation.bytes),
                time: Micros(time as u64),
                stack,
                ..Event::default()
            });
        };
        if event.is_free() {
            push(Action::FreeRequested);
            push(Action::FreeCompleted);
        } else {
            push(Action::Alloc);
        }
    }
    trace.devices.push(device);
    trace
}

/// Frames of a stack, the innermost first.
fn names((scope, layer, phase, op): (Scope, Layer, Phase, &'static str)) -> Vec<String> {
    let mut names = vec![op.to_owned()];
    match layer {
        Layer::Norm => names.push("norm".to_owned()),
        Layer::Attention => names.push("attention".to_owned()),
        Layer::FeedForward => names.push("feed_forward".to_owned()),
        Layer::Convolution => names.push("convolution".to_owned()),
        Layer::Other => {}
    }
    names.push(match scope {
        Scope::Model => "model".to_owned(),
        Scope::Embedding => "embedding".to_owned(),
        Scope::Block(at) => format!("block.{at}"),
        Scope::Head => "head".to_owned(),
        Scope::Loss => "loss".to_owned(),
        Scope::Optimizer => "optimizer".to_owned(),
    });
    names.push(
        match phase {
            Phase::Build => "build",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Recompute => "recompute",
            Phase::Step => "optimizer_step",
            Phase::Zero => "zero_grad",
        }
        .to_owned(),
    );
    names
}
