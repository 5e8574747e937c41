//! `gapless top --once --format json`: the contract is `schema/gapless.top.schema.json`.

use crate::machine::{Machine, Process, Use};
use anyhow::Result;
use gapless_stats::{Card, HostStatistics};
use serde_json::{Value, json};

pub(super) fn text(machine: &Machine) -> Result<String> {
    Ok(serde_json::to_string_pretty(&value(machine))? + "\n")
}

fn value(machine: &Machine) -> Value {
    let gpus: Vec<Value> = machine
        .gpus
        .iter()
        .map(|gpu| {
            json!({
                "index": gpu.index,
                "instance": gpu.instance,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "unified": gpu.unified,
                "total": gpu.total,
                "used": gpu.used,
                "allocated": gpu.live,
                "reserved": gpu.reserved,
                "others": gpu.others,
            })
        })
        .collect();
    let processes: Vec<Value> =
        machine.processes.iter().map(|process| of_process(process, machine)).collect();
    json!({
        "schema": "gapless.top/1",
        "tool": { "name": "gapless", "version": env!("CARGO_PKG_VERSION") },
        "time": machine.time,
        "host": machine.host,
        "nvml": { "available": machine.no_nvml.is_none(), "reason": machine.no_nvml },
        "gpus": gpus,
        "processes": processes,
        "hosts": machine.hosts.iter().map(of_host).collect::<Vec<_>>(),
        "notes": machine.notes,
    })
}

fn of_host(statistics: &HostStatistics) -> Value {
    let f = &statistics.figures;
    json!({
        "pid": statistics.process.pid,
        "command": statistics.process.command,
        "written": statistics.time,
        "large": f.large_live,
        "large_peak": f.large_peak,
        "kept": f.kept,
        "small": f.small,
        "resident": f.resident,
        "faults": f.faults,
        "allocations": f.allocations,
        "frees": f.frees,
        "handed_out": f.handed_out,
        "reused": f.reused,
        "given_back": f.given_back,
        "huge_pages": f.huge_pages != 0,
        "limit": (f.limit > 0).then_some(f.limit),
        "budget_held": f.budget_held,
        "refused": f.refused,
        "small_live": f.small_live,
        "lists_kept": f.lists_kept,
        "lists_most": f.lists_most,
        "threads": f.threads,
        "pinned": f.pinned,
        "pinned_kept": f.pinned_kept,
        "classes": statistics.classes.iter().map(|(size, bytes)| json!({"size": size, "bytes": bytes})).collect::<Vec<_>>(),
    })
}

fn of_process(process: &Process, machine: &Machine) -> Value {
    let about = process.statistics.as_ref().map(|statistics| {
        json!({
            "program": statistics.program,
            "began": statistics.began,
            "written": statistics.time,
            "silent": process.silent(machine.time).is_some(),
        })
    });
    json!({
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "gapless": about,
        "tenant": process.tenant.as_ref().map(|tenant| json!({ "name": tenant.name, "limit": tenant.limit })),
        "gpus": process.uses.iter().map(|one| of_use(one, machine)).collect::<Vec<_>>(),
    })
}

fn of_use(one: &Use, machine: &Machine) -> Value {
    let gpu = machine.gpus.get(one.gpu);
    json!({
        "index": gpu.map(|gpu| gpu.index),
        "uuid": gpu.and_then(|gpu| gpu.uuid.clone()),
        "used": one.used,
        "memory": one.card.as_ref().map(of_card),
    })
}

fn of_card(card: &Card) -> Value {
    let c = &card.counters;
    let lanes: Vec<Value> = card
        .lanes
        .iter()
        .map(|lane| {
            json!({
                "stream": lane.stream,
                "pool": [lane.pool.0, lane.pool.1],
                "blocks": lane.blocks,
                "allocated": lane.live,
                "reserved": lane.reserved,
            })
        })
        .collect();
    let holders: Vec<Value> = card
        .holders
        .iter()
        .map(|holder| json!({ "what": holder.what, "bytes": holder.bytes, "blocks": holder.blocks }))
        .collect();
    let regions: Vec<Value> = card
        .regions
        .iter()
        .map(|region| {
            json!({
                "name": region.name,
                "keep": region.keep,
                "allocated": region.live,
                "held": region.held,
                "asleep": region.asleep,
                "host": region.host,
            })
        })
        .collect();
    let samples: Vec<Value> = card
        .samples
        .iter()
        .map(|sample| json!([sample.time, sample.live, sample.reserved, sample.allocations]))
        .collect();
    json!({
        "cuda_index": card.index,
        "limit": card.limit,
        "allocated": card.live,
        "peak_allocated": card.peak_live,
        "requested": card.requested,
        "active": card.active,
        "reserved": card.reserved,
        "peak_reserved": card.peak_reserved,
        "stranded": card.stranded,
        "blocks": card.blocks,
        "fragmentation": card.fragmentation(),
        "allocations_per_second": card.allocations_per_second(),
        "counters": {
            "allocations": c.allocations,
            "frees": c.frees,
            "ooms": c.ooms,
            "retries": c.retries,
            "pages_created": c.creates,
            "pages_mapped": c.maps,
            "pages_harvested": c.harvested,
            "device_allocs": c.device_allocs,
            "device_frees": c.device_frees,
            "host_waits": c.host_waits,
            "driver_ns": c.driver_ns,
        },
        "streams": lanes,
        "more_streams": card.more_lanes,
        "holders": holders,
        "regions": regions,
        "samples": samples,
    })
}
