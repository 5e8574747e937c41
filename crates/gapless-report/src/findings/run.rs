//! Findings about the run: GAP2xx growth, GAP3xx calls and failures of the allocator, GAP4xx kinds of bytes.

use super::{Context, MIB, Rule, bytes, percent, share};
use crate::finding::{Finding, Severity};
use crate::text::plural;

pub(super) const RULES: &[Rule] =
    &[growth, slow_growth, out_of_memory, retries, device_calls, activations, optimizer_state, one_holder];

/// Growth that counts as a leak: 1 MiB a step, or a thousandth of the peak if that is less, but at least 64 KiB.
fn leak_threshold(c: &Context<'_>) -> f64 {
    (MIB as f64).min((c.device.peak_allocated as f64 / 1000.0).max(65_536.0))
}

/// GAP201: allocations of a step that are never freed add up to [`leak_threshold`].
fn growth(c: &Context<'_>) -> Option<Finding> {
    let growth = c.device.growth.as_ref()?;
    let leaking: f64 = growth.growers.iter().map(|g| g.bytes_per_step).sum();
    if growth.growers.is_empty() || leaking < leak_threshold(c) {
        return None;
    }
    let total: u64 = growth.growers.iter().map(|g| g.total).sum();
    let per_step = bytes(leaking as u64);
    let headline = format!(
        "live bytes grow by {per_step} a step: {} kept over {}",
        bytes(total),
        plural(growth.steps, "step")
    );
    let mut finding = c.finding("GAP201", Severity::Warning, total, headline);
    for grower in growth.growers.iter().take(4) {
        finding = finding.evidence(format!(
            "{} a step, {}, by {}",
            bytes(grower.bytes_per_step as u64),
            plural(grower.count, "allocation"),
            grower.label
        ));
    }
    let worst = &growth.growers[0].label;
    Some(finding.help(format!(
        "something keeps the tensors made by {worst}: look for a list, a cache or a closure that holds them (detach() and \
         .item() for logged values); a thousand more steps would add {}",
        bytes((leaking * 1000.0) as u64)
    )))
}

/// GAP202: memory stays behind step after step, below the threshold of GAP201.
fn slow_growth(c: &Context<'_>) -> Option<Finding> {
    let growth = c.device.growth.as_ref()?;
    let leaking: f64 = growth.growers.iter().map(|g| g.bytes_per_step).sum();
    if growth.growers.is_empty() || leaking >= leak_threshold(c) {
        return None;
    }
    let total: u64 = growth.growers.iter().map(|g| g.total).sum();
    let headline = format!("{} stays behind every step", bytes(leaking as u64));
    Some(
        c.finding("GAP202", Severity::Info, total, headline)
            .evidence(format!(
                "{} over {}, most by {}",
                bytes(total),
                plural(growth.steps, "step"),
                growth.growers[0].label
            ))
            .help("harmless for a short run; kept loss tensors look like this (log loss.item() instead)"),
    )
}

/// GAP301: a request failed.
fn out_of_memory(c: &Context<'_>) -> Option<Finding> {
    let ooms = &c.device.churn.ooms;
    let last = ooms.last()?;
    let d = c.device;
    let headline = match ooms.len() {
        1 => {
            format!("out of memory at event {}: {} asked for", last.tick.saturating_sub(1), bytes(last.asked))
        }
        n => format!("out of memory {n} times, last for {}", bytes(last.asked)),
    };
    let held = d.peak_reserved.unwrap_or(d.peak_allocated);
    let mut finding = c.finding("GAP301", Severity::Error, last.asked, headline).evidence(format!(
        "the device had {} free, the process held up to {}",
        bytes(last.device_free),
        bytes(held)
    ));
    for holder in d.holders.iter().take(3) {
        finding = finding.evidence(format!(
            "{} ({}) by {}",
            bytes(holder.bytes),
            share(holder.share),
            holder.label
        ));
    }
    let cached = d.at_peak_reserved.losses.external;
    let help = if last.device_free >= last.asked {
        format!(
            "{} was free on the device, so a cap stopped the request (set_per_process_memory_fraction, or another limit): raise \
             it, or make the largest holder smaller",
            bytes(last.device_free)
        )
    } else if cached >= last.asked && !c.expandable() {
        finding = finding.suggest(format!("{}=expandable_segments:True", c.conf_variable()));
        format!(
            "{} was cached but in pieces that could not serve: {}=expandable_segments:True lets them",
            bytes(cached),
            c.conf_variable()
        )
    } else {
        format!(
            "what is live does not fit: at least {} must go; the holders above are where to look (a smaller micro-batch, \
             checkpointing, or sharding)",
            bytes(last.asked.saturating_sub(last.device_free))
        )
    };
    Some(finding.help(help))
}

/// GAP302: the cache was flushed to serve a request.
fn retries(c: &Context<'_>) -> Option<Finding> {
    let churn = &c.device.churn;
    if churn.retries == 0 {
        return None;
    }
    let headline = match churn.retries {
        1 => "the allocator flushed its cache once to serve a request".to_owned(),
        n => format!("the allocator flushed its cache {n} times to serve requests"),
    };
    Some(
        c.finding("GAP302", Severity::Warning, 0, headline)
            .evidence(format!("{} took memory, {} gave it back", plural(churn.device_allocs, "device call"), churn.device_frees))
            .help(
                "each flush waits for the device and takes the memory again: the run is at its limit; less live memory, or less \
                 fragmentation, makes it faster",
            ),
    )
}

/// GAP303: the allocator still calls the device at least once a step, on average, after the first two steps.
fn device_calls(c: &Context<'_>) -> Option<Finding> {
    let calls = c.device.churn.device_calls_after_warmup?;
    let steps = c.device.steps.count.saturating_sub(2);
    if steps < 2 || calls < steps {
        return None;
    }
    let headline = format!("{calls} device calls after the first two steps: the cache does not settle");
    let varies = "shapes vary, so later steps meet sizes that the cache has no block for: run the largest shape first, so \
                  that its blocks are there to be cut";
    Some(
        c.finding("GAP303", Severity::Info, 0, headline)
            .evidence(format!("{:.1} a step over {steps} steps", calls as f64 / steps as f64))
            .help(if c.device.churn.retries > 0 {
                "the flushes of GAP302 cause them: see there"
            } else {
                varies
            }),
    )
}

/// GAP401: activations are at least half of the peak of a run that trains.
fn activations(c: &Context<'_>) -> Option<Finding> {
    let kinds = &c.device.kinds.at_peak;
    let in_use = c.device.at_peak_allocated.figures.active;
    let trains = kinds.gradients + kinds.optimizer_state > 0;
    if !trains || kinds.activations < in_use / 2 || kinds.activations < 256 * MIB {
        return None;
    }
    let headline = format!(
        "activations are {} of the {} in use at the peak ({})",
        bytes(kinds.activations),
        bytes(in_use),
        percent(kinds.activations, in_use)
    );
    Some(
        c.finding("GAP401", Severity::Info, kinds.activations, headline)
            .evidence(format!(
                "with the temporaries of the steps, {}, {} of it can shrink with the batch",
                bytes(kinds.temporaries),
                percent(kinds.activations + kinds.temporaries, in_use)
            ))
            .evidence(c.device.kinds.evidence.clone())
            .help(
                "a smaller micro-batch with gradient accumulation, or checkpointing the blocks, acts on these bytes; a leaner \
                 optimizer or sharded weights do not",
            ),
    )
}

/// GAP402: optimizer state is at least 30 % of the peak.
fn optimizer_state(c: &Context<'_>) -> Option<Finding> {
    let kinds = &c.device.kinds.at_peak;
    let in_use = c.device.at_peak_allocated.figures.active;
    let state = kinds.optimizer_state;
    if state < 256 * MIB || (state as f64) < 0.30 * in_use as f64 {
        return None;
    }
    let headline = format!("optimizer state is {} of the peak ({})", bytes(state), percent(state, in_use));
    let ratio = state as f64 / kinds.weights.max(1) as f64;
    Some(
        c.finding("GAP402", Severity::Info, state, headline)
            .evidence(format!("{ratio:.1} times the weights ({})", bytes(kinds.weights)))
            .help(format!(
                "sharding it over n devices (ZeRO-1, FSDP) leaves {} / n here; an 8-bit or offloaded optimizer shrinks the same \
                 bytes",
                bytes(state)
            )),
    )
}

/// GAP403: one stack holds at least a quarter of the peak, and it is no weight or optimizer state.
fn one_holder(c: &Context<'_>) -> Option<Finding> {
    let holder = c.device.holders.first()?;
    let transient = !matches!(holder.kind.as_str(), "weights" | "optimizer state");
    if holder.stack.is_empty() || holder.share < 0.25 || holder.bytes < 256 * MIB || !transient {
        return None;
    }
    let headline = format!("one line holds {} of the peak: {}", share(holder.share), holder.label);
    Some(
        c.finding("GAP403", Severity::Info, holder.bytes, headline)
            .evidence(format!(
                "{} in {} ({})",
                bytes(holder.bytes),
                plural(holder.count, "allocation"),
                holder.kind
            ))
            .help("start there: computing it in chunks, or in place, lowers the peak by up to that much"),
    )
}
