//! Copies figures from an analysis into the report. It decides nothing; `findings` reads the report and adds theirs.

mod host_run;

use crate::analysis::{Analysis, DeviceAnalysis};
use crate::findings;
use crate::model::advice::Answer;
use crate::model::{
    ChurnInfo, DeviceReport, FiguresInfo, FrameInfo, GrowerInfo, GrowthInfo, HolderInfo, HostInfo, KindBytes,
    KindsInfo, LossesInfo, MomentInfo, NoteInfo, OomInfo, PeakMoments, PeaksInfo, PoolInfo, PoolLossesInfo,
    ProcessInfo, Report, SCHEMA, Settings, SourceInfo, StepInfo, StepsInfo, StreamInfo, TimelineInfo, Tool,
    When,
};
use gapless_trace::growth::Grower;
use gapless_trace::holders::{self, Grouping, Holder};
use gapless_trace::kinds::Kind;
use gapless_trace::moment::{Losses, PoolLosses};
use gapless_trace::{
    Action, AllocatorSettings, Figures, HostMemory, Moment, PoolId, StackId, Tick, Trace, Usage,
};

impl Analysis<'_> {
    /// The report, with at most `top` holders a device. `path` is the user's name of the trace.
    #[must_use]
    pub fn report(&self, path: &str, top: usize) -> Report {
        let mut report = report(self, path, top);
        report.findings = findings::find(&report);
        report
    }

    /// The same with advice: `answers` has one of each device.
    #[must_use]
    pub fn advised_report(&self, path: &str, top: usize, answers: Vec<Answer>) -> Report {
        let mut report = report(self, path, top);
        report.advice = Some(answers);
        report.findings = findings::find(&report);
        report
    }
}

/// The tool and the source: the head of every JSON.
pub(crate) fn origin(analysis: &Analysis<'_>, path: &str) -> (Tool, SourceInfo) {
    let trace = analysis.trace;
    let note =
        |code: &str, text: &str, device| NoteInfo { code: code.to_owned(), text: text.to_owned(), device };
    let mut notes: Vec<NoteInfo> = trace.source.notes.iter().map(|n| note(n.code, &n.text, None)).collect();
    for d in &analysis.devices {
        notes.extend(d.history.notes.iter().map(|n| note(n.code, &n.text, Some(d.device.device))));
    }
    let tool = Tool::this();
    let source = SourceInfo {
        path: path.to_owned(),
        format: trace.source.format.clone(),
        producer: trace.source.producer.clone(),
        process: trace.process.is_known().then(|| process(&trace.process)),
        notes,
    };
    (tool, source)
}

fn process(p: &gapless_trace::Process) -> ProcessInfo {
    let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    ProcessInfo {
        program: known(&p.program),
        pid: p.pid,
        host: known(&p.host),
        rank: p.rank,
        world: p.world,
        torch: known(&p.torch),
        allocator: known(&p.allocator),
    }
}

/// The same for results of a replay: a note says so if the run's release of torch is not modelled.
pub(crate) fn replayed_origin(analysis: &Analysis<'_>, path: &str) -> (Tool, SourceInfo) {
    let (tool, mut source) = origin(analysis, path);
    if let Some(text) = gapless_replay::torch::beyond_the_model(&source.producer) {
        source.notes.push(NoteInfo { code: "torch-not-modelled".to_owned(), text, device: None });
    }
    (tool, source)
}

pub(crate) fn report(analysis: &Analysis<'_>, path: &str, top: usize) -> Report {
    let trace = analysis.trace;
    let (tool, source) = origin(analysis, path);
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        tool,
        source,
        settings: trace.settings.as_ref().map(settings),
        devices: analysis.devices.iter().map(|d| device(trace, d, top)).collect(),
        host: trace.host.as_ref().map(host),
        host_run: None,
        advice: None,
        headline: None,
        findings: Vec::new(),
    };
    if let Some(sample) = &trace.host_sample {
        host_run::add(&mut report, trace, sample, top);
    }
    report
}

fn host(memory: &HostMemory) -> HostInfo {
    HostInfo {
        events: memory.events,
        blocks: memory.blocks,
        held: memory.held.0,
        in_use: memory.in_use.0,
        peak_held: memory.peak_held.0,
        peak_in_use: memory.peak_in_use.0,
    }
}

/// When `tick` was, for people.
pub(crate) fn when(d: &DeviceAnalysis<'_>, tick: Tick) -> When {
    let events = &d.device.events;
    let time_us = events.has_times().then(|| events.time_at(tick).since(events.time_at(Tick(0))).0);
    When { tick: tick.0, time_us, step: d.steps.step_at(tick).map(|step| step as u32) }
}

/// Active bytes by kind at `tick`, and the cached bytes beside them.
pub(crate) fn kinds_at(d: &DeviceAnalysis<'_>, tick: Tick) -> KindBytes {
    let active = d.kinds.active_at(&d.history, tick);
    let of = |kind: Kind| active[kind as usize].0;
    let in_use: u64 = active.iter().map(|bytes| bytes.0).sum();
    let held = |s: &&gapless_trace::SegmentSpan| s.start <= tick && tick < s.end;
    let reserved: u64 = d.history.segments.iter().filter(held).map(|s| s.size.0).sum();
    KindBytes {
        weights: of(Kind::Weights),
        gradients: of(Kind::Gradients),
        optimizer_state: of(Kind::OptimizerState),
        activations: of(Kind::Activations),
        temporaries: of(Kind::Temporaries),
        unexplained: of(Kind::Unexplained),
        recomputed: of(Kind::Recomputed),
        collectives: of(Kind::Collectives),
        inputs: of(Kind::Inputs),
        outputs: of(Kind::Outputs),
        constants: of(Kind::Constants),
        cached_free: reserved.saturating_sub(in_use),
    }
}

fn device(trace: &Trace, d: &DeviceAnalysis<'_>, top: usize) -> DeviceReport {
    let (history, events) = (&d.history, &d.device.events);
    let usage = &history.usage;
    let peak = usage.allocated.peak_at;
    DeviceReport {
        device: d.device.device,
        events: events.len() as u64,
        allocations: events.count(Action::Alloc) as u64,
        preexisting: u64::from(history.preexisting),
        duration_us: events
            .has_times()
            .then(|| events.time_at(history.last_tick).since(events.time_at(Tick(0))).0),
        peak_live: usage.live.peak.0,
        peak_allocated: usage.allocated.peak.0,
        peak_requested: usage.requested.peak.0,
        peak_active: usage.active.peak.0,
        peak_reserved: history.has_segments.then_some(usage.reserved.peak.0),
        // Fragmentation compares peaks, which only a recorded history has.
        fragmentation: usage.fragmentation().filter(|_| !events.is_empty()),
        segments_peak: u64::from(history.segments_peak),
        peak_at: PeakMoments {
            live: when(d, usage.live.peak_at),
            allocated: when(d, usage.allocated.peak_at),
            requested: when(d, usage.requested.peak_at),
            active: when(d, usage.active.peak_at),
            reserved: when(d, usage.reserved.peak_at),
        },
        end: figures(&usage.now()),
        at_peak_allocated: moment(d, peak),
        at_peak_reserved: moment(d, usage.reserved.peak_at),
        pools: history
            .pools
            .iter()
            .map(|p| PoolInfo {
                pool: pool(d, p.pool),
                class: p.class.name().to_owned(),
                peaks: peaks(&p.usage),
            })
            .collect(),
        streams: d
            .device
            .streams
            .iter()
            .zip(&history.streams)
            .map(|(stream, usage)| StreamInfo { stream: stream.0, peaks: peaks(usage) })
            .collect(),
        kinds: KindsInfo { inferred: true, evidence: d.kinds.evidence.clone(), at_peak: kinds_at(d, peak) },
        holders: holder_rows(trace, d, peak, top),
        modules: crate::modules::at(trace, d, peak),
        steps: steps(d),
        growth: d.growth.as_ref().map(|g| GrowthInfo {
            bytes_per_step: g.slope,
            steps: g.at_end.len() as u64,
            growers: g.growers.iter().map(|grower| grower_row(trace, grower)).collect(),
        }),
        churn: churn(d),
        timeline: timeline(d),
    }
}

pub(crate) fn settings(s: &AllocatorSettings) -> Settings {
    Settings {
        conf: s.conf.clone(),
        max_split_size: s.max_split_size.map(|b| b.0),
        garbage_collection_threshold: s.garbage_collection_threshold,
        expandable_segments: s.expandable_segments,
        roundup_power2_divisions: s.roundup_power2_divisions,
        other: s.other.iter().cloned().collect(),
    }
}

fn figures(f: &Figures) -> FiguresInfo {
    FiguresInfo {
        live: f.live.0,
        allocated: f.allocated.0,
        requested: f.requested.0,
        active: f.active.0,
        reserved: f.reserved.0,
    }
}

fn peaks(usage: &Usage) -> PeaksInfo {
    PeaksInfo {
        peak_live: usage.live.peak.0,
        peak_allocated: usage.allocated.peak.0,
        peak_requested: usage.requested.peak.0,
        peak_active: usage.active.peak.0,
        peak_reserved: usage.reserved.peak.0,
        peak_tick: usage.allocated.peak_at.0,
    }
}

fn losses(l: &Losses) -> LossesInfo {
    LossesInfo {
        internal: l.internal.0,
        external: l.external.0,
        stranded: l.stranded.0,
        pending: l.pending.0,
        largest_gap: l.largest_gap.0,
        gaps: u64::from(l.gaps),
    }
}

fn moment(d: &DeviceAnalysis<'_>, tick: Tick) -> MomentInfo {
    let m = Moment::at(&d.history, tick);
    MomentInfo {
        tick: tick.0,
        figures: figures(&m.figures),
        segments: m.segments.len() as u64,
        losses: losses(&m.losses),
        pools: m.pools.iter().map(|p| pool_losses(d, p)).collect(),
    }
}

pub(crate) fn pool_losses(d: &DeviceAnalysis<'_>, p: &PoolLosses) -> PoolLossesInfo {
    PoolLossesInfo {
        pool: pool(d, p.pool),
        class: p.class.name().to_owned(),
        stream: d.device.streams.get(p.stream as usize).map_or(0, |s| s.0),
        reserved: p.reserved.0,
        active: p.active.0,
        losses: losses(&p.losses),
    }
}

pub(crate) fn pool(d: &DeviceAnalysis<'_>, index: u16) -> String {
    d.device.pools.get(index as usize).copied().unwrap_or(PoolId::DEFAULT).to_string()
}

pub(crate) fn frames(trace: &Trace, stack: StackId) -> Vec<FrameInfo> {
    let text = |id| trace.strings.get(id).to_owned();
    let frame = |&id: &gapless_trace::stacks::FrameId| {
        let frame = trace.frames.get(id);
        FrameInfo { name: text(frame.name), file: text(frame.file), line: frame.line }
    };
    trace.stacks.get(stack).iter().map(frame).collect()
}

pub(crate) fn holder_rows(trace: &Trace, d: &DeviceAnalysis<'_>, tick: Tick, top: usize) -> Vec<HolderInfo> {
    let found = holders::at(trace, d.device, &d.history, &d.kinds, tick, top, Grouping::Stack);
    let row = |(i, h): (usize, &Holder)| HolderInfo {
        rank: i as u32 + 1,
        bytes: h.bytes.0,
        requested: h.requested.0,
        count: h.count as u64,
        share: h.bytes.share_of(found.total),
        kind: h.main_kind().name().to_owned(),
        label: h.label.clone(),
        scope: h.scope.iter().map(|&name| trace.strings.get(name).to_owned()).collect(),
        stack: frames(trace, h.stack),
        size_class: (h.stack.is_none() && h.module.is_empty())
            .then(|| d.history.allocations.get(h.example).block.0),
        module: h.module.clone(),
        notes: h.notes.iter().map(|&note| trace.strings.get(note).chars().take(NOTE).collect()).collect(),
    };
    found.largest.iter().enumerate().map(row).collect()
}

/// Characters of a note that a report shows.
const NOTE: usize = 200;

fn grower_row(trace: &Trace, g: &Grower) -> GrowerInfo {
    let label = holders::stack_label(trace, g.stack).map_or_else(
        || {
            let (least, most) = g.sizes;
            if least == most { format!("blocks of {least}") } else { format!("blocks of {least} to {most}") }
        },
        |label| label.text,
    );
    GrowerInfo {
        label,
        stack: frames(trace, g.stack),
        // Over all steps looked at, so that an allocation of few steps counts by its share of them.
        bytes_per_step: g.total.0 as f64 / g.of_steps.max(1) as f64,
        total: g.total.0,
        count: g.count as u64,
    }
}

fn steps(d: &DeviceAnalysis<'_>) -> StepsInfo {
    let events = &d.device.events;
    let births = |from: Tick, to: Tick| {
        let born = |tick: Tick| d.history.allocations.born_before(tick);
        (born(to) - born(from)) as u64
    };
    let spans =
        d.steps.spans.iter().zip(d.step_peaks.iter().zip(&d.step_ends)).map(|(span, (peak, live))| {
            StepInfo {
                start: span.start.0,
                end: span.end.0,
                duration_us: events.has_times().then(|| {
                    events.time_at(Tick(span.end.0.saturating_sub(1))).since(events.time_at(span.start)).0
                }),
                allocations: births(span.start, span.end),
                peak_allocated: peak.bytes.0,
                live_end: live.0,
            }
        });
    StepsInfo { count: d.steps.spans.len() as u64, evidence: d.steps.sentence(), spans: spans.collect() }
}

fn churn(d: &DeviceAnalysis<'_>) -> ChurnInfo {
    let c = &d.churn;
    ChurnInfo {
        allocations_per_second: c.per_second,
        allocations_per_step: c.per_step.map(|n| n as f64),
        device_allocs: c.device_calls.taken as u64,
        device_frees: c.device_calls.given_back as u64,
        device_calls_after_warmup: c.steady_calls.map(|calls| calls.total() as u64),
        retries: c.retries.len() as u64,
        ooms: ooms(d),
    }
}

pub(crate) fn ooms(d: &DeviceAnalysis<'_>) -> Vec<OomInfo> {
    let row = |oom: &gapless_trace::churn::Oom| OomInfo {
        tick: oom.tick.0,
        asked: oom.asked.0,
        device_free: oom.device_free.0,
    };
    d.churn.ooms.iter().map(row).collect()
}

fn timeline(d: &DeviceAnalysis<'_>) -> TimelineInfo {
    let points = &d.history.curve.points;
    TimelineInfo {
        ticks: points.iter().map(|p| p.tick.0).collect(),
        allocated: points.iter().map(|p| p.allocated.0).collect(),
        active: points.iter().map(|p| p.active.0).collect(),
        reserved: points.iter().map(|p| p.reserved.0).collect(),
    }
}
