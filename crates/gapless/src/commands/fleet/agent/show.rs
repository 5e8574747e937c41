//! The agent's output: text, JSON, and metrics for Prometheus.

use super::account::{Account, Held, OfGpu};
use crate::commands::metrics::exposition::{Kind, Text, gpu_labels, labels};
use crate::machine::{Gpu, Machine};
use gapless_trace::Bytes;
use gapless_trace::numbers::{plural, verb};
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) fn text(node: &str, machine: &Machine, account: &Account) -> String {
    let mut out = String::new();
    let gpus = plural(machine.gpus.len() as u64, "GPU");
    let over = account.over().count();
    let whose = verb(over as u64, "its", "their");
    let _ = writeln!(out, "{} · {gpus} · {over} over {whose} promise", shown(node));
    if let Some(reason) = &machine.no_nvml {
        let _ = writeln!(out, "  the driver says nothing of GPUs: {}", shown(reason));
    }
    for (gpu, of) in machine.gpus.iter().zip(&account.gpus) {
        let _ = writeln!(out, "\n  GPU {}  {}  {}", gpu.number(), shown(&gpu.name), Bytes(gpu.total));
        let (booked, used) = (Bytes(of.booked()), Bytes(gpu.used));
        let _ = writeln!(out, "    booked {booked}, used {used}");
        for held in &of.held {
            let name: String = shown(&held.name).chars().take(60).collect();
            let _ = writeln!(out, "    {name}");
            let _ = write!(out, "      booked {}, used {}", Bytes(held.booked), Bytes(held.used));
            match held.over() {
                0 => out.push('\n'),
                more => {
                    let _ = writeln!(out, ", OVER-USE by {}", Bytes(more));
                }
            }
        }
        if !of.strangers.is_empty() {
            let (by, used) = (plural(of.strangers.len() as u64, "process"), Bytes(of.unbooked));
            let _ = writeln!(out, "    not booked\n      used {used} by {by}");
        }
    }
    for name in &account.lost {
        let _ = writeln!(out, "\n  {}: its GPU is not on this machine", shown(name));
    }
    out
}

pub(super) fn json(node: &str, machine: &Machine, account: &Account) -> Value {
    let gpus: Vec<Value> = machine.gpus.iter().zip(&account.gpus).map(|(gpu, of)| of_gpu(gpu, of)).collect();
    json!({
        "schema": "gapless.fleet-agent/1",
        "node": node,
        "time": machine.time,
        "nvml": {"available": machine.no_nvml.is_none(), "reason": machine.no_nvml},
        "gpus": gpus,
        "over_use": account.over().count(),
        "lost": account.lost,
        "notes": machine.notes,
    })
}

fn of_gpu(gpu: &Gpu, of: &OfGpu) -> Value {
    let held = |held: &Held| {
        json!({
            "id": held.id,
            "name": held.name,
            "booked": held.booked,
            "used": held.used,
            "over": held.over(),
            "pids": held.pids,
        })
    };
    json!({
        "index": gpu.index,
        "instance": gpu.instance,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "total": gpu.total,
        "used": gpu.used,
        "booked": of.booked(),
        "unbooked": of.unbooked,
        "unbooked_pids": of.strangers,
        "holders": of.held.iter().map(held).collect::<Vec<_>>(),
    })
}

pub(super) fn metrics(node: &str, machine: &Machine, account: &Account) -> String {
    let mut out = Text::default();
    let pairs = || machine.gpus.iter().zip(&account.gpus);
    type OfHeld = fn(&Held) -> u64;
    type OfCard = fn(&Gpu, &OfGpu) -> u64;
    let cards: [(&str, &str, OfCard); 4] = [
        ("gapless_node_gpu_total_bytes", "The GPU's memory.", |gpu, _| gpu.total),
        ("gapless_node_gpu_used_bytes", "What of the GPU is used, by whomever.", |gpu, _| gpu.used),
        ("gapless_node_gpu_booked_bytes", "What of the GPU is promised.", |_, of| of.booked()),
        ("gapless_node_gpu_unbooked_bytes", "What processes without a promise use.", |_, of| of.unbooked),
    ];
    for (name, help, value) in cards {
        out.family(name, Kind::Gauge, help);
        for (gpu, of) in pairs() {
            out.sample(name, &labels(&gpu_labels(gpu, node)), value(gpu, of) as f64);
        }
    }
    let holders: [(&str, &str, OfHeld); 3] = [
        ("gapless_pod_booked_bytes", "What a pod or tenant was promised of the GPU.", |held| held.booked),
        ("gapless_pod_used_bytes", "What its processes use of the GPU.", |held| held.used),
        ("gapless_pod_over_use_bytes", "What they use beyond the promise.", Held::over),
    ];
    for (name, help, value) in holders {
        out.family(name, Kind::Gauge, help);
        for (gpu, of) in pairs() {
            for held in &of.held {
                let mut all = gpu_labels(gpu, node);
                all.push(("pod", held.name.clone()));
                all.push(("id", held.id.clone()));
                out.sample(name, &labels(&all), value(held) as f64);
            }
        }
    }
    out.text
}

/// Names come from other users, so their control characters must not reach a terminal.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_kube::metrics::{Gauges, Metrics};

    /// Every metric on the board of the fleet is served by the agent or by the extender.
    #[test]
    fn the_board_asks_for_what_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/fleet.json");
        let board: Value = serde_json::from_slice(&std::fs::read(path).expect("the board")).expect("JSON");
        let served = [
            Metrics::default().text(&Gauges::default()),
            metrics("n1", &Machine::default(), &Account::default()),
        ]
        .concat();
        let mut asked = 0;
        for panel in board["panels"].as_array().expect("panels") {
            for query in panel["targets"].as_array().expect("queries") {
                let text = query["expr"].as_str().expect("a query");
                let inside = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                for name in text.split(inside).filter(|word| word.starts_with("gapless_")) {
                    let name = name.strip_suffix("_bucket").unwrap_or(name);
                    assert!(served.contains(&format!("# TYPE {name} ")), "{name} is not served");
                    asked += 1;
                }
            }
        }
        assert!(asked > 15, "{asked}");
    }
}
