//! The cheapest changes that would have served a failed request: rules over facts, from those that cost nothing to the
//! most expensive. Each is checked against the facts before it is given, and none advises a setting that is set
//! already. If no rule holds, the advice is how much less must be live.

use super::words::{pool, stream};
use super::{Facts, Limit, LimitBy};
use crate::regions;
use gapless_pool::PoolKey;
use gapless_trace::Bytes;

/// Limits are rounded up to this, because pages are multiples of it.
const PAGE: u64 = 2 << 20;

/// The one or two cheapest changes that would have helped.
#[must_use]
pub fn of(facts: &Facts) -> Vec<String> {
    if facts.size > facts.total {
        return vec![format!(
            "nothing on this device: the request alone is {} larger than all of its memory",
            Bytes(facts.size - facts.total)
        )];
    }
    let rules = [
        budget,
        before_capture,
        limit,
        memory_pool,
        region,
        pages,
        graph_pool,
        other_processes,
        smaller_batch,
    ];
    let mut found: Vec<String> = rules.iter().filter_map(|rule| rule(facts)).take(2).collect();
    if found.is_empty() {
        found.push(less_live(facts));
    }
    found
}

/// A budget or share of the process itself refused the request, so other memory could not have helped.
fn budget(facts: &Facts) -> Option<String> {
    facts.refusal.as_ref()?;
    let free = Bytes(facts.free);
    (facts.free >= facts.size.min(facts.missing.max(1))).then(|| {
        format!("a larger budget or share, or less that is live within it: {free} are free on the device")
    })
}

/// The process's own limit, if the device has the missing memory.
fn limit(facts: &Facts) -> Option<String> {
    let Limit { bytes, by } = facts.limit?;
    let raised = (bytes.max(facts.reserved) + facts.missing).div_ceil(PAGE) * PAGE;
    let more = raised - facts.reserved;
    if more > facts.free || facts.reserved + facts.free <= bytes {
        return None;
    }
    let free = Bytes(facts.free);
    Some(match by {
        LimitBy::Option => {
            let mib = raised.div_ceil(1 << 20);
            format!("limit={mib}MiB or more (it is {}): {free} are free on the device", Bytes(bytes))
        }
        LimitBy::Fraction(_) => {
            // Rounded up, so that the printed fraction is enough.
            let thousandths = (raised as u128 * 1000).div_ceil(u128::from(facts.total.max(1)));
            if thousandths > 1000 {
                return None;
            }
            let fraction = thousandths as f64 / 1000.0;
            format!("set_per_process_memory_fraction({fraction}) or more: {free} are free on the device")
        }
    })
}

/// Memory that could have been given back, or waited for, before a capture began.
fn before_capture(facts: &Facts) -> Option<String> {
    if !facts.is_quiet {
        return None;
    }
    let what = if matches!(facts.pool, PoolKey(0, 1..)) { "use_mem_pool" } else { "the capture" };
    let pending: u64 = facts.holes.pending.iter().map(|(_, bytes)| bytes).sum();
    if pending >= facts.missing {
        let (first, _) = facts.holes.pending.first()?;
        let of = stream(*first);
        return Some(format!("torch.cuda.synchronize() before {what}: {} wait for {of}", Bytes(pending)));
    }
    let cached = facts.holes.elsewhere;
    (cached >= facts.missing).then(|| {
        format!(
            "{} are free outside its pool: freed, and torch.cuda.empty_cache() called, before {what}",
            Bytes(cached)
        )
    })
}

/// A memory pool of the program that keeps its free memory to itself. With use_on_oom it would lend memory that lies in
/// it in one piece; when it ends, its pages come back.
fn memory_pool(facts: &Facts) -> Option<String> {
    let of_program = |key: PoolKey| matches!(key, PoolKey(0, 1..)) && key != facts.pool;
    let private = &facts.holes.private;
    let lends = facts.holes.largest.filter(|hole| {
        of_program(hole.pool)
            && !facts.pool.is_private()
            && !facts.spare.contains(&hole.pool)
            && hole.stream == facts.stream
            && hole.size >= facts.size
    });
    if let Some(found) = lends.and_then(|hole| private.iter().find(|p| p.pool == hole.pool)) {
        let (pool, free) = (pool(found.pool), Bytes(found.free));
        return Some(format!("torch.cuda.MemPool(use_on_oom=True): {pool} keeps {free} that are free"));
    }
    let found = private.iter().find(|p| of_program(p.pool) && p.pages >= facts.missing)?;
    let (pool, free) = (pool(found.pool), Bytes(found.free));
    Some(format!("the end of {pool} (del its torch.cuda.MemPool): it keeps {free} that are free"))
}

/// A region that is awake, and whose sleep would have been enough.
fn region(facts: &Facts) -> Option<String> {
    let (name, bytes) = facts.regions.iter().find(|(_, bytes)| *bytes >= facts.missing && *bytes > 0)?;
    Some(format!("gapless.sleep({name:?}): {} of region {name} could sleep", Bytes(*bytes)))
}

/// Graphs that keep memory which no work uses between replays.
fn graph_pool(facts: &Facts) -> Option<String> {
    let is_graph = |private: &&gapless_pool::PrivateFree| {
        !matches!(private.pool, PoolKey(0, _)) && !regions::is_region(private.pool)
    };
    let graphs: Vec<_> = facts.holes.private.iter().filter(is_graph).collect();
    let pages: u64 = graphs.iter().map(|private| private.pages).sum();
    (pages >= facts.missing && pages > 0).then(|| {
        let s = if graphs.len() == 1 { "" } else { "s" };
        format!(
            "reset() of graphs that are over, or one pool for all of them (pool=): {} are free in {} graph pool{s}",
            Bytes(pages),
            graphs.len()
        )
    })
}

/// Smaller pages, of which live blocks would pin fewer bytes.
fn pages(facts: &Facts) -> Option<String> {
    let mib = facts.pages? >> 20;
    Some(format!("largest_page={mib}MiB: the recorded events, replayed with it, leave room for this request"))
}

/// Other processes whose end would have been enough.
fn other_processes(facts: &Facts) -> Option<String> {
    if facts.limit.is_some_and(|limit| facts.reserved + facts.missing > limit.bytes) {
        return None;
    }
    let others = facts.others.as_ref()?;
    let &(pid, bytes) = others.first()?;
    if bytes >= facts.missing {
        return Some(format!("the end of process {pid}: it holds {} of this device", Bytes(bytes)));
    }
    let sum: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    (sum >= facts.missing).then(|| {
        format!("the end of {} other processes: they hold {} of this device", others.len(), Bytes(sum))
    })
}

fn smaller_batch(facts: &Facts) -> Option<String> {
    let share = facts.batch?;
    Some(format!(
        "a batch of at most {share} % of this one (an estimate: so the recorded steps fit when they are replayed)"
    ))
}

/// The last resort: fewer live bytes.
fn less_live(facts: &Facts) -> String {
    let missing = Bytes(facts.missing);
    // Handlers that were called already are not advised again.
    let offloading = if facts.handlers > 0 { "offloading" } else { "offloading (gapless.on_pressure)" };
    format!("no setting; {missing} less must be live: a smaller batch, checkpointing, {offloading}")
}
