//! Counters and times, for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the buckets, in microseconds.
const BUCKETS: [u64; 11] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_500_000];

/// Requests of one kind.
#[derive(Debug, Default)]
pub struct Verb {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
    failed: AtomicU64,
}

impl Verb {
    pub fn note(&self, took: Duration, ok: bool) {
        let micros = took.as_micros() as u64;
        if let Some(bucket) = BUCKETS.iter().position(|&end| micros <= end) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        if !ok {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// All counters.
#[derive(Debug, Default)]
pub struct Metrics {
    pub filter: Verb,
    pub prioritize: Verb,
    pub bind: Verb,
    /// The part of the time for binds that was not spent waiting for the API server.
    pub bind_own: Verb,
    pub refused: AtomicU64,
    pub expired: AtomicU64,
    pub conflicts: AtomicU64,
}

/// Present values.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    pub free_milli: u64,
    pub total_milli: u64,
    pub pods: u64,
    pub known: u64,
    pub assumed: u64,
    pub over_booked: u64,
    pub closed: u64,
    /// Some of the closed nodes, each with its reason.
    pub closed_nodes: Vec<(String, &'static str)>,
    pub lists: u64,
    pub troubles: u64,
}

impl Metrics {
    /// The text format of Prometheus.
    pub fn text(&self, now: &Gauges) -> String {
        let mut out = String::new();
        out.push_str("# HELP gapless_fleet_request_seconds Time to answer the scheduler; bind-own: bind without the API server's part.\n");
        out.push_str("# TYPE gapless_fleet_request_seconds histogram\n");
        let verbs = [
            ("filter", &self.filter),
            ("prioritize", &self.prioritize),
            ("bind", &self.bind),
            ("bind-own", &self.bind_own),
        ];
        for (name, verb) in verbs {
            let mut sum = 0;
            for (end, bucket) in BUCKETS.iter().zip(&verb.buckets) {
                sum += bucket.load(Ordering::Relaxed);
                let end = *end as f64 / 1e6;
                let _ = writeln!(
                    out,
                    "gapless_fleet_request_seconds_bucket{{verb=\"{name}\",le=\"{end}\"}} {sum}"
                );
            }
            let count = verb.count.load(Ordering::Relaxed);
            let seconds = verb.micros.load(Ordering::Relaxed) as f64 / 1e6;
            let _ =
                writeln!(out, "gapless_fleet_request_seconds_bucket{{verb=\"{name}\",le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "gapless_fleet_request_seconds_sum{{verb=\"{name}\"}} {seconds}");
            let _ = writeln!(out, "gapless_fleet_request_seconds_count{{verb=\"{name}\"}} {count}");
        }
        out.push_str("# HELP gapless_fleet_request_failures_total Requests that ended in an error.\n");
        out.push_str("# TYPE gapless_fleet_request_failures_total counter\n");
        for (name, verb) in verbs {
            let failed = verb.failed.load(Ordering::Relaxed);
            let _ = writeln!(out, "gapless_fleet_request_failures_total{{verb=\"{name}\"}} {failed}");
        }
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            ("pods_refused_total", "counter", "Pods that fitted nowhere.", value(&self.refused)),
            ("assumptions_expired_total", "counter", "Places that were never bound.", value(&self.expired)),
            ("conflicts_total", "counter", "Bookings that others had made first.", value(&self.conflicts)),
            (
                "over_booked_total",
                "counter",
                "Bound pods found on GPUs without room for them.",
                now.over_booked,
            ),
            (
                "closed_nodes",
                "gauge",
                "Nodes that get no pods because their bookings make no sense.",
                now.closed,
            ),
            ("gpu_free_milli", "gauge", "Free thousandths of GPUs.", now.free_milli),
            ("gpu_total_milli", "gauge", "All thousandths of GPUs.", now.total_milli),
            ("pods", "gauge", "Pods in the account.", now.pods),
            ("known_pods", "gauge", "Pods of the cluster that have not finished.", now.known),
            ("assumed_pods", "gauge", "Pods that have a place and are not bound yet.", now.assumed),
            ("lists_total", "counter", "Complete lists from the API server.", now.lists),
            ("watch_troubles_total", "counter", "Watches and lists that failed.", now.troubles),
        ] {
            let _ = writeln!(out, "# HELP gapless_fleet_{name} {help}\n# TYPE gapless_fleet_{name} {kind}");
            let _ = writeln!(out, "gapless_fleet_{name} {value}");
        }
        out.push_str("# HELP gapless_fleet_node_closed A node that gets no pods, and why.\n");
        out.push_str("# TYPE gapless_fleet_node_closed gauge\n");
        for (node, why) in &now.closed_nodes {
            // Names of nodes have no characters that need an escape: the API server refuses others.
            let node: String =
                node.chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\')).collect();
            let _ = writeln!(out, "gapless_fleet_node_closed{{node=\"{node}\",why=\"{why}\"}} 1");
        }
        out
    }
}
