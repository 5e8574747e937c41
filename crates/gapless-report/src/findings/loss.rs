//! Findings about memory that is held and not used: GAP1xx.

use super::{Context, MIB, Rule, bytes, percent, share};
use crate::finding::{Finding, Severity};
use crate::model::PoolLossesInfo;

pub(super) const RULES: &[Rule] =
    &[fragmentation, stranded, rounding, pending, spike, other_streams, private_pools];

/// True if the recording began late and saw no two steps: the step that needed most may lie before it.
fn saw_too_little(c: &Context<'_>) -> bool {
    c.has_note("recording-began-late") && c.device.steps.count < 2
}

/// GAP101: peak reserved is at least 10 % and 256 MiB above peak allocated.
fn fragmentation(c: &Context<'_>) -> Option<Finding> {
    let d = c.device;
    let reserved = d.peak_reserved?;
    let lost = reserved.saturating_sub(d.peak_allocated);
    let fragmentation = d.fragmentation?;
    if fragmentation < 0.10 || lost < 256 * MIB || saw_too_little(c) {
        return None;
    }
    let at = &d.at_peak_reserved;
    let (stranded, external) = (at.losses.stranded, at.losses.external);
    let whole = external.saturating_sub(stranded);
    // Events before the recording may have needed these bytes.
    let since = if c.has_note("recording-began-late") { " since the recording began" } else { "" };
    let headline = format!(
        "{} of {} reserved was never needed at once{since}: fragmentation {}",
        bytes(lost),
        bytes(reserved),
        share(fragmentation)
    );
    let finding = c
        .finding("GAP101", Severity::Warning, lost, headline)
        .evidence(format!("peak allocated {}, peak reserved {}", bytes(d.peak_allocated), bytes(reserved)))
        .evidence(format!(
            "at peak reserved: {} in use, {} in segments without a live block, {} stranded beside live blocks, \
             largest free block {}",
            bytes(at.figures.active),
            bytes(whole),
            bytes(stranded),
            bytes(at.losses.largest_gap)
        ));
    let mut help = fragmentation_help(c, whole, stranded);
    if c.report.advice.is_none() && d.allocations > 0 {
        help +=
            "; `gapless advise FILE` replays this run with hundreds of settings and shows what each saves";
    }
    let finding = won_back(c, finding, lost);
    let path = &c.report.source.path;
    let plain = path != "-" && path.chars().all(|c| c.is_ascii_alphanumeric() || "._-/+".contains(c));
    let finding = match () {
        () if !c.expandable() => finding.suggest(expandable_setting(c)),
        () if c.report.advice.is_none() && plain => finding.suggest(format!("gapless advise {path}")),
        () => finding,
    };
    Some(finding.help(help))
}

/// Ranks the finding by the bytes that a replayed setting wins back, if the report has advice. Without it, the free
/// bytes are an upper bound.
fn won_back(c: &Context<'_>, mut finding: Finding, most: u64) -> Finding {
    let Some(answer) = c.report.advice.iter().flatten().find(|answer| answer.device == c.device.device)
    else {
        return finding.evidence(format!(
            "{} is the most that could be won back: a setting wins back a part of it, which `gapless advise` measures",
            bytes(most)
        ));
    };
    let saving = answer.suggestions.first().map_or(0, |best| best.saving);
    finding.bytes = saving.min(most);
    let words = if saving == 0 {
        "no setting that was replayed wins back any of it".to_owned()
    } else {
        format!("the best setting that was replayed wins back {}", bytes(saving))
    };
    finding.evidence(words)
}

/// The setting, for the release of PyTorch that made the run.
fn expandable_setting(c: &Context<'_>) -> String {
    format!("{}=expandable_segments:True", c.conf_variable())
}

fn fragmentation_help(c: &Context<'_>, whole: u64, stranded: u64) -> String {
    if !c.expandable() {
        let why = if stranded > whole {
            "segments then grow in place and their free pages can serve other sizes, which is where most of this is lost"
        } else {
            "freed memory then serves requests of any size, instead of waiting in segments cut for other sizes"
        };
        return format!("set {} before the process starts: {why}", expandable_setting(c));
    }
    if whole > stranded {
        format!(
            "expandable segments are on already; {} lay in whole free pages: torch.cuda.empty_cache() after the \
             phase that needed them returns them to the device",
            bytes(whole)
        )
    } else {
        "expandable segments are on already and most of this lies between live blocks: allocate what lives long \
         (weights, optimizer state, caches) before the first step, so that it does not pin pages of the steps"
            .to_owned()
    }
}

/// GAP102: at peak allocated, at least 10 % of reserved, and 256 MiB, lies free between live blocks.
fn stranded(c: &Context<'_>) -> Option<Finding> {
    let at = &c.device.at_peak_allocated;
    let (lost, reserved) = (at.losses.stranded, at.figures.reserved);
    if lost < 256 * MIB || lost < reserved / 10 || saw_too_little(c) {
        return None;
    }
    let headline = format!(
        "{} is stranded at the peak: free, but other blocks keep its segments from being released",
        bytes(lost)
    );
    let finding = won_back(c, c.finding("GAP102", Severity::Warning, lost, headline), lost);
    // GAP101 has already promised these bytes.
    let finding = match fragmentation(c) {
        Some(_) => Finding { evidence: vec!["GAP101 counts these bytes too".to_owned()], ..finding },
        None => finding,
    };
    let finding = if c.expandable() { finding } else { finding.suggest(expandable_setting(c)) };
    Some(
        finding
            .evidence(format!(
                "at peak allocated: {} reserved, {} free in {} gaps, the largest {}",
                bytes(reserved),
                bytes(at.losses.external),
                at.losses.gaps,
                bytes(at.losses.largest_gap)
            ))
            .help(format!(
                "nothing larger than {} could be served from the cache then; {}",
                bytes(at.losses.largest_gap),
                if c.expandable() {
                    "reuse buffers of one size for what varies from step to step"
                } else {
                    "expandable_segments:True, or padding varying shapes to a few sizes, lets the gaps be used"
                }
            )),
    )
}

/// GAP103: rounding and unsplit blocks take at least 5 % of allocated, and 64 MiB.
fn rounding(c: &Context<'_>) -> Option<Finding> {
    let at = &c.device.at_peak_allocated;
    let (lost, allocated) = (at.losses.internal, at.figures.active);
    if lost < 64 * MIB || lost < allocated / 20 {
        return None;
    }
    let settings = c.report.settings.as_ref();
    let divisions = settings.is_some_and(|s| s.roundup_power2_divisions.iter().any(|&d| d > 1));
    let max_split = settings.and_then(|s| s.max_split_size);
    let help = if divisions {
        "roundup_power2_divisions is set and rounds requests up: raise the number of divisions, or leave it out".to_owned()
    } else if let Some(limit) = max_split {
        format!("max_split_size_mb never splits blocks of {} and more: raise or remove it", bytes(limit))
    } else {
        "blocks of over 1 MiB are handed out whole when less than 1 MiB would be left: requests just above a multiple of \
         2 MiB lose most; expandable_segments:True cuts them exactly"
            .to_owned()
    };
    let headline = format!(
        "{} ({} of allocated) is rounding: blocks larger than asked for",
        bytes(lost),
        percent(lost, allocated)
    );
    Some(
        c.finding("GAP103", Severity::Warning, lost, headline)
            .evidence(format!(
                "at peak allocated: {} asked for, {} in blocks",
                bytes(at.figures.requested),
                bytes(allocated)
            ))
            .help(help),
    )
}

/// GAP104: frees that wait for other streams hold at least 3 % of reserved, and 64 MiB.
fn pending(c: &Context<'_>) -> Option<Finding> {
    let d = c.device;
    let at = if d.at_peak_reserved.losses.pending > d.at_peak_allocated.losses.pending {
        &d.at_peak_reserved
    } else {
        &d.at_peak_allocated
    };
    let lost = at.losses.pending;
    if lost < 64 * MIB || lost < at.figures.reserved / 33 {
        return None;
    }
    let headline = format!("{} was freed, but had to wait for other streams (record_stream)", bytes(lost));
    Some(
        c.finding("GAP104", Severity::Warning, lost, headline)
            .evidence(format!("at tick {}: {} active, of it {} pending", at.tick, bytes(at.figures.active), bytes(lost)))
            .help(
                "make the allocating stream wait for the other one (Stream.wait_stream) and free after that, instead of \
                 record_stream: the block is then reusable at once",
            ),
    )
}

/// GAP105: one step needs at least 20 %, and 256 MiB, more than the median step.
fn spike(c: &Context<'_>) -> Option<Finding> {
    let spans = &c.device.steps.spans;
    if spans.len() < 4 {
        return None;
    }
    let mut peaks: Vec<u64> = spans.iter().map(|s| s.peak_allocated).collect();
    let (step, &most) = peaks.iter().enumerate().max_by_key(|&(i, &peak)| (peak, std::cmp::Reverse(i)))?;
    peaks.sort_unstable();
    let median = peaks[peaks.len() / 2];
    let more = most.saturating_sub(median);
    if more < 256 * MIB || more < median / 5 {
        return None;
    }
    let headline = format!("step {step} needs {} more than the median step", bytes(more));
    Some(
        c.finding("GAP105", Severity::Info, more, headline)
            .evidence(format!(
                "peak allocated: {} in step {step}, median {}, least {}",
                bytes(most),
                bytes(median),
                bytes(peaks[0])
            ))
            .help(format!(
                "the card must hold the largest step: bound what makes step {step} large (tokens or images in a batch) and \
                 up to {} is free for all others",
                bytes(more)
            )),
    )
}

/// GAP106: at peak allocated, at least 5 % of reserved, and 128 MiB, is free memory of streams other than the busiest.
fn other_streams(c: &Context<'_>) -> Option<Finding> {
    let at = &c.device.at_peak_allocated;
    let mut by_stream: std::collections::BTreeMap<u64, (u64, u64)> = std::collections::BTreeMap::new();
    for pool in &at.pools {
        let entry = by_stream.entry(pool.stream).or_default();
        entry.0 += pool.active;
        entry.1 += pool.losses.external;
    }
    let (busiest, _) = by_stream.iter().max_by_key(|(_, (active, _))| *active)?;
    let idle: u64 = by_stream.iter().filter(|(s, _)| s != &busiest).map(|(_, (_, free))| free).sum();
    if by_stream.len() < 2 || idle < 128 * MIB || idle < at.figures.reserved / 20 {
        return None;
    }
    let headline = format!("{} is free at the peak, but tied to other streams", bytes(idle));
    let mut finding = c.finding("GAP106", Severity::Warning, idle, headline);
    for (stream, (active, free)) in by_stream.iter().take(6) {
        finding = finding.evidence(format!(
            "stream {}: {} in use, {} free",
            gapless_trace::StreamId(*stream),
            bytes(*active),
            bytes(*free)
        ));
    }
    Some(finding.help(
        "the allocator never gives one stream's free blocks to another: allocate on one stream and hand tensors over \
         (wait_stream), or use fewer streams for large tensors",
    ))
}

/// GAP107: private pools (CUDA graphs, MemPool) hold at least 128 MiB of free memory at peak allocated.
fn private_pools(c: &Context<'_>) -> Option<Finding> {
    let private: Vec<&PoolLossesInfo> =
        c.device.at_peak_allocated.pools.iter().filter(|p| p.pool != "default").collect();
    let idle: u64 = private.iter().map(|p| p.losses.external).sum();
    let held: u64 = private.iter().map(|p| p.reserved).sum();
    if idle < 128 * MIB {
        return None;
    }
    let headline = format!("private pools hold {} of free memory at the peak", bytes(idle));
    Some(
        c.finding("GAP107", Severity::Info, idle, headline)
            .evidence(format!("{} reserved in private pools, {} of it free", bytes(held), bytes(idle)))
            .help(
                "graphs captured into one pool (torch.cuda.graph(g, pool=other.pool())) share their memory when they never \
                 run at the same time",
            ),
    )
}
