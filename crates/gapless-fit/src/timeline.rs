//! A simulated run as a trace whose stacks read like the model: operator, kind of layer, part, phase. The report's page
//! groups by them.
//!
//! PyTorch's allocator serves the run on a card without end, so blocks lie where it puts them and its segments are in
//! the trace as well: rounding, reserved bytes and device calls are those of the replay.

use crate::eager::{Layer, Phase, Scope, Steps, replay};
use gapless_replay::Allocator;
use gapless_replay::torch::NoteKind;
use gapless_trace::{Action, Bytes, DeviceAddr, DeviceTrace, Event, Frame, Source, StackId, StreamId, Trace};
use std::collections::HashMap;

/// The run as a trace. It has no clock: how long an operator takes is not simulated.
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
    let mut torch = replay::torch();
    torch.keep_notes();
    let mut addresses = vec![DeviceAddr(0); log.allocations.len()];
    let mut known: HashMap<(Scope, Layer, Phase, &'static str), StackId> = HashMap::new();
    for event in &log.events {
        let slot = event.slot();
        let allocation = &log.allocations[slot as usize];
        let key = (allocation.scope, allocation.layer, allocation.phase, allocation.op);
        let stack = *known.entry(key).or_insert_with(|| {
            let frames: Vec<_> = names(key)
                .into_iter()
                .map(|(name, file)| {
                    let (name, file) = (trace.strings.intern(&name), trace.strings.intern(file));
                    trace.frames.intern(Frame { name, file, line: 0 })
                })
                .collect();
            trace.stacks.intern(&frames)
        });
        let mut push =
            |action, addr, size| device.events.push(Event { action, addr, size, stack, ..Event::default() });
        let size = Bytes(allocation.bytes);
        if event.is_free() {
            torch.free(slot);
            push(Action::FreeRequested, addresses[slot as usize], size);
            push(Action::FreeCompleted, addresses[slot as usize], size);
        } else {
            // On a card without end no request fails, and no segment is freed.
            let Ok(addr) = torch.alloc(slot, size, 0) else { break };
            addresses[slot as usize] = addr;
            for note in torch.take_notes().iter().filter(|note| note.kind == NoteKind::SegmentAlloc) {
                push(Action::SegmentAlloc, DeviceAddr(note.addr), Bytes(note.size));
            }
            push(Action::Alloc, addr, size);
        }
    }
    trace.devices.push(device);
    trace
}

/// Frames of a stack, the innermost first: a name, and its part of the program.
fn names((scope, layer, phase, op): (Scope, Layer, Phase, &'static str)) -> Vec<(String, &'static str)> {
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
    // Code that infers kinds knows these places from the stacks of real runs.
    let (phase, place) = match phase {
        Phase::Build => ("__init__", "model"),
        Phase::Forward => ("forward", "model"),
        Phase::Backward => ("backward", "torch/autograd/"),
        Phase::Recompute => ("recompute", "torch/autograd/"),
        Phase::Step => ("optimizer_step", "torch/optim/"),
        Phase::Zero => ("zero_grad", "torch/optim/"),
    };
    let mut frames: Vec<_> = names.into_iter().map(|name| (name, "model")).collect();
    frames.push((phase.to_owned(), place));
    frames
}
