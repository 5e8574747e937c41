//! A machine in Prometheus' text format, version 0.0.4. Names end with their unit, counters with `_total`; cards have
//! the labels of DCGM's exporter.

use crate::machine::{Gpu, Machine, Process, Use};
use gapless_stats::host::Figures;
use gapless_stats::{Card, Region};
use std::collections::HashSet;
use std::fmt::Write;

/// The type of a family: a value that goes up and down, or one that only goes up.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Gauge,
    Counter,
}

use Kind::{Counter, Gauge};

type OfCard = fn(&Card) -> Option<f64>;

/// Of each process on each card, by its own word.
const CARD: &[(&str, Kind, &str, OfCard)] = &[
    ("gapless_allocated_bytes", Gauge, "Bytes in blocks that the program holds.", |c| Some(c.live as f64)),
    ("gapless_allocated_peak_bytes", Gauge, "The largest gapless_allocated_bytes.", |c| {
        Some(c.peak_live as f64)
    }),
    ("gapless_requested_bytes", Gauge, "Bytes asked for, until they can be used again.", |c| {
        Some(c.requested as f64)
    }),
    ("gapless_active_bytes", Gauge, "Block bytes until they can be used again.", |c| Some(c.active as f64)),
    ("gapless_reserved_bytes", Gauge, "Device memory that the allocator holds.", |c| Some(c.reserved as f64)),
    ("gapless_reserved_peak_bytes", Gauge, "The most that was reserved.", |c| Some(c.peak_reserved as f64)),
    ("gapless_stranded_bytes", Gauge, "Free bytes in pages that others use.", |c| Some(c.stranded as f64)),
    ("gapless_limit_bytes", Gauge, "The most that the process may hold of the card.", |c| {
        c.limit.map(|l| l as f64)
    }),
    ("gapless_blocks", Gauge, "Blocks that the program holds.", |c| Some(c.blocks as f64)),
    ("gapless_fragmentation_ratio", Gauge, "1 - peak allocated / peak reserved.", |c| {
        Some(c.fragmentation())
    }),
    ("gapless_allocations_total", Counter, "Requests that were served.", |c| {
        Some(c.counters.allocations as f64)
    }),
    ("gapless_frees_total", Counter, "Blocks that were given back.", |c| Some(c.counters.frees as f64)),
    ("gapless_oom_total", Counter, "Requests that failed in the end.", |c| Some(c.counters.ooms as f64)),
    ("gapless_retries_total", Counter, "Requests that were tried again.", |c| {
        Some(c.counters.retries as f64)
    }),
    ("gapless_pages_created_total", Counter, "Pages that the driver made.", |c| {
        Some(c.counters.creates as f64)
    }),
    ("gapless_pages_mapped_total", Counter, "Pages that the driver mapped.", |c| {
        Some(c.counters.maps as f64)
    }),
    (
        "gapless_pages_harvested_total",
        Counter,
        "Pages mapped a second time instead of taken from the device.",
        |c| Some(c.counters.harvested as f64),
    ),
    ("gapless_device_allocations_total", Counter, "Calls that took memory from the device.", |c| {
        Some(c.counters.device_allocs as f64)
    }),
    ("gapless_device_frees_total", Counter, "Calls that gave memory back to the device.", |c| {
        Some(c.counters.device_frees as f64)
    }),
    ("gapless_host_waits_total", Counter, "Times that the host waited for streams.", |c| {
        Some(c.counters.host_waits as f64)
    }),
    ("gapless_driver_seconds_total", Counter, "Time in calls that map memory.", |c| {
        Some(c.counters.driver_ns as f64 / 1e9)
    }),
];

type OfHost = fn(&Figures) -> Option<u64>;

/// Has a label for the size.
const CLASS: &str = "gapless_host_class_bytes";

/// Of each process whose host memory Gapless serves.
const HOST: &[(&str, Kind, &str, OfHost)] = &[
    ("gapless_host_large_bytes", Gauge, "Large host buffers that the program holds.", |f| Some(f.large_live)),
    ("gapless_host_large_peak_bytes", Gauge, "The largest gapless_host_large_bytes.", |f| Some(f.large_peak)),
    ("gapless_host_kept_bytes", Gauge, "Host memory that is kept for the next large buffer.", |f| {
        Some(f.kept)
    }),
    ("gapless_host_small_bytes", Gauge, "Host memory of small objects, in use or not.", |f| Some(f.small)),
    ("gapless_host_small_live_bytes", Gauge, "Small objects that the program holds.", |f| Some(f.small_live)),
    ("gapless_host_lists_bytes", Gauge, "Free small objects in the lists of threads.", |f| {
        Some(f.lists_kept)
    }),
    ("gapless_host_lists_most_bytes", Gauge, "The most of them that one thread keeps.", |f| {
        Some(f.lists_most)
    }),
    ("gapless_host_threads", Gauge, "Threads that have lists of free small objects.", |f| Some(f.threads)),
    ("gapless_host_pinned_bytes", Gauge, "Memory that a driver registered or allocated.", |f| Some(f.pinned)),
    ("gapless_host_pinned_kept_bytes", Gauge, "Memory that stays registered for the next buffer.", |f| {
        Some(f.pinned_kept)
    }),
    ("gapless_host_huge_pages", Gauge, "1 if large host buffers get huge pages.", |f| Some(f.huge_pages)),
    ("gapless_host_resident_bytes", Gauge, "Resident memory of the process.", |f| Some(f.resident)),
    ("gapless_host_limit_bytes", Gauge, "The budget that the process shares with others.", |f| {
        (f.limit > 0).then_some(f.limit)
    }),
    ("gapless_host_budget_held_bytes", Gauge, "What all processes of that budget hold.", |f| {
        (f.limit > 0).then_some(f.budget_held)
    }),
    ("gapless_host_allocations_total", Counter, "Large host buffers that were allocated.", |f| {
        Some(f.allocations)
    }),
    ("gapless_host_frees_total", Counter, "Large host buffers that were freed.", |f| Some(f.frees)),
    ("gapless_host_handed_out_bytes_total", Counter, "Bytes of large host buffers.", |f| Some(f.handed_out)),
    ("gapless_host_reused_bytes_total", Counter, "Bytes of them that needed no fresh memory.", |f| {
        Some(f.reused)
    }),
    ("gapless_host_given_back_bytes_total", Counter, "Bytes that went back to the kernel.", |f| {
        Some(f.given_back)
    }),
    ("gapless_host_refused_total", Counter, "Requests that the budget refused.", |f| Some(f.refused)),
    ("gapless_host_faults_total", Counter, "Page faults of the process.", |f| Some(f.faults)),
];

type OfGpu = fn(&Gpu) -> f64;

/// Of each card, over all its processes.
const GPU: &[(&str, &str, OfGpu)] = &[
    ("gapless_device_total_bytes", "The card's memory.", |g| g.total as f64),
    ("gapless_device_used_bytes", "What of the card is used, by whomever.", |g| g.used as f64),
    ("gapless_device_others_bytes", "What of the card others than Gapless' allocators use.", |g| {
        g.others as f64
    }),
];

type OfRegion = fn(&Region) -> u64;

/// Of each region of a process on a card, with the region's name as a label.
const REGION: &[(&str, &str, OfRegion)] = &[
    ("gapless_region_allocated_bytes", "Bytes in blocks of a region that are awake.", |r| r.live),
    ("gapless_region_held_bytes", "Device memory that a region holds.", |r| r.held),
    ("gapless_region_asleep_bytes", "Bytes in blocks of a region that sleep.", |r| r.asleep),
    ("gapless_region_host_bytes", "Host memory that keeps the bytes of a region that sleeps.", |r| r.host),
];

/// The names of all metrics.
#[cfg(test)]
fn names() -> Vec<&'static str> {
    let single = [
        "gapless_build_info",
        "gapless_device_info",
        "gapless_nvml_available",
        "gapless_process_used_bytes",
        "gapless_statistics_timestamp_seconds",
    ];
    let hosts = HOST.iter().map(|(name, ..)| *name).chain([CLASS]);
    CARD.iter()
        .map(|(name, ..)| *name)
        .chain(GPU.iter().map(|(name, ..)| *name))
        .chain(hosts)
        .chain(REGION.iter().map(|(name, ..)| *name))
        .chain(single)
        .collect()
}

pub(super) fn text(machine: &Machine) -> String {
    let mut out = Text::default();
    out.family("gapless_build_info", Gauge, "The version that serves this.");
    out.sample("gapless_build_info", &labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    out.family(
        "gapless_nvml_available",
        Gauge,
        "Whether the driver (NVML) reports processes that do not use Gapless.",
    );
    out.sample("gapless_nvml_available", "", f64::from(u8::from(machine.no_nvml.is_none())));
    // The name is a label of this metric only, because DCGM's label modelName is against Prometheus' rules.
    out.family("gapless_device_info", Gauge, "What a card is.");
    for gpu in &machine.gpus {
        let mut all = gpu_labels(gpu, &machine.host);
        all.push(("model", gpu.name.clone()));
        out.sample("gapless_device_info", &labels(&all), 1.0);
    }
    for (name, help, of) in GPU {
        out.family(name, Gauge, help);
        for gpu in &machine.gpus {
            out.sample(name, &labels(&gpu_labels(gpu, &machine.host)), of(gpu));
        }
    }
    let uses: Vec<(&Use, String)> =
        machine.processes.iter().flat_map(|process| uses_of(process, machine)).collect();
    for (name, kind, help, of) in CARD {
        out.family(name, *kind, help);
        for (one, labels) in &uses {
            if let Some(value) = one.card.as_ref().and_then(of) {
                out.sample(name, labels, value);
            }
        }
    }
    for (name, help, of) in REGION {
        out.family(name, Gauge, help);
        for (one, labels) in &uses {
            for region in one.card.iter().flat_map(|card| &card.regions) {
                out.sample(name, &with_label(labels, "region", &region.name), of(region) as f64);
            }
        }
    }
    let name = "gapless_process_used_bytes";
    out.family(name, Gauge, "Card memory that a process uses according to the driver, with any allocator.");
    for (one, labels) in &uses {
        if let Some(used) = one.used {
            out.sample(name, labels, used as f64);
        }
    }
    let name = "gapless_statistics_timestamp_seconds";
    out.family(name, Gauge, "When a process last wrote its statistics.");
    for process in &machine.processes {
        if let Some(statistics) = &process.statistics {
            let (pid, program) = (process.pid.to_string(), program(&process.command));
            let labels = labels(&[("Hostname", &machine.host), ("pid", &pid), ("process", &program)]);
            out.sample(name, &labels, statistics.time as f64 / 1e6);
        }
    }
    for (name, kind, help, of) in HOST {
        out.family(name, *kind, help);
        for statistics in &machine.hosts {
            if let Some(value) = of(&statistics.figures) {
                let (pid, program) =
                    (statistics.process.pid.to_string(), program(&statistics.process.command));
                let labels = labels(&[("Hostname", &machine.host), ("pid", &pid), ("process", &program)]);
                out.sample(name, &labels, value as f64);
            }
        }
    }
    out.family(CLASS, Gauge, "Small objects that the program holds, by the size of an object.");
    for statistics in &machine.hosts {
        let (pid, program) = (statistics.process.pid.to_string(), program(&statistics.process.command));
        for (size, bytes) in &statistics.classes {
            let size = size.to_string();
            let about =
                [("Hostname", machine.host.as_str()), ("pid", &pid), ("process", &program), ("size", &size)];
            out.sample(CLASS, &labels(&about), *bytes as f64);
        }
    }
    out.text
}

pub(crate) fn gpu_labels<'a>(gpu: &'a Gpu, host: &'a str) -> Vec<(&'static str, String)> {
    let mut labels = vec![
        ("gpu", gpu.index.to_string()),
        ("UUID", gpu.uuid.clone().unwrap_or_default()),
        ("device", format!("nvidia{}", gpu.index)),
        ("Hostname", host.to_owned()),
    ];
    labels.extend(gpu.instance.map(|instance| ("GPU_I_ID", instance.to_string())));
    labels
}

fn uses_of<'a>(process: &'a Process, machine: &Machine) -> Vec<(&'a Use, String)> {
    let with_labels = |one: &'a Use| {
        let gpu = machine.gpus.get(one.gpu)?;
        let mut all = gpu_labels(gpu, &machine.host);
        all.push(("pid", process.pid.to_string()));
        all.push(("process", program(&process.command)));
        if let Some(tenant) = &process.tenant {
            all.push(("tenant", tenant.name.clone()));
        }
        Some((one, labels(&all)))
    };
    process.uses.iter().filter_map(with_labels).collect()
}

/// The name of a process: its program and the script that it runs, without folders, and without arguments,
/// which may be secret.
fn program(command: &str) -> String {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let mut words = command.split_ascii_whitespace();
    let name = words.next().map(base).unwrap_or_default();
    let is_interpreter = name.starts_with("python") || name.starts_with("torchrun") || name == "accelerate";
    match words.find(|word| !word.starts_with('-')) {
        Some(script) if is_interpreter => format!("{name} {}", base(script)),
        _ => name,
    }
}

/// Labels with one more.
fn with_label(all: &str, name: &str, value: &str) -> String {
    let more = labels(&[(name, value)]);
    format!("{},{}", all.trim_end_matches('}'), more.trim_start_matches('{'))
}

pub(crate) fn labels<N: AsRef<str>, V: AsRef<str>>(pairs: &[(N, V)]) -> String {
    let mut out = String::from("{");
    for (name, value) in pairs {
        if out.len() > 1 {
            out.push(',');
        }
        let _ = write!(out, "{}=\"", name.as_ref());
        for c in value.as_ref().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    out.push('}');
    out
}

#[derive(Default)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// Series that were written. Prometheus refuses a whole scrape if one comes twice.
    seen: HashSet<String>,
}

impl Text {
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Gauge => "gauge",
            Counter => "counter",
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let series = format!("{name}{labels}");
        if self.seen.insert(series.clone()) {
            let _ = writeln!(self.text, "{series} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::machine;

    #[test]
    fn a_machine_as_prometheus_reads_it() {
        insta::assert_snapshot!(text(&machine()));
    }

    #[test]
    fn an_empty_machine_is_told_too() {
        let text = text(&Machine { no_nvml: Some("no driver".to_owned()), ..Machine::default() });
        assert!(text.contains("\ngapless_nvml_available 0\n"), "{text}");
        assert!(!text.contains("gapless_allocated_bytes{"));
    }

    #[test]
    fn no_series_is_told_twice_and_no_label_breaks_out() {
        let mut machine = machine();
        let mut again = machine.processes[0].clone();
        again.command = "a\"b\\c\nd".to_owned();
        machine.processes.extend([machine.processes[0].clone(), again]);
        let text = text(&machine);
        assert!(text.contains(r#"process="a\"b\\c""#), "{text}");
        let mut seen = HashSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(seen.insert(series.to_owned()), "{series}");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
    }

    #[test]
    fn regions_are_told_with_their_names() {
        let mut machine = machine();
        let region = Region { name: "weights".to_owned(), held: 3, asleep: 5, ..Region::default() };
        let card = machine
            .processes
            .iter_mut()
            .flat_map(|process| &mut process.uses)
            .find_map(|one| one.card.as_mut());
        card.expect("a process that tells").regions = vec![region];
        let text = text(&machine);
        let line = |name: &str, value: u64| {
            let of = |line: &&str| {
                line.starts_with(&format!("{name}{{gpu=")) && line.contains(",region=\"weights\"}")
            };
            assert_eq!(
                text.lines().find(of).and_then(|line| line.rsplit_once(' ')).map(|(_, v)| v),
                Some(&*value.to_string())
            );
        };
        line("gapless_region_allocated_bytes", 0);
        line("gapless_region_held_bytes", 3);
        line("gapless_region_asleep_bytes", 5);
        line("gapless_region_host_bytes", 0);
    }

    #[test]
    fn programs_are_named_without_their_arguments() {
        let of = |command: &str| program(command);
        assert_eq!(of("/usr/bin/python3 -u /home/a/train.py --token secret"), "python3 train.py");
        assert_eq!(of("python -m pkg.train x"), "python pkg.train");
        assert_eq!(of("/opt/server --key secret positional"), "server");
        assert_eq!(of(""), "");
    }

    /// Every metric on the board is served by this program or by DCGM's exporter.
    #[test]
    fn the_board_asks_for_what_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../grafana/gapless.json");
        let board: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).expect("the board")).expect("JSON");
        let names = names();
        let panels = board["panels"].as_array().expect("panels");
        let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let mut asked = HashSet::new();
        for query in queries {
            let text = query["expr"].as_str().expect("a query");
            let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            let found: Vec<&str> =
                text.split(word).filter(|w| w.starts_with("gapless_") || w.starts_with("DCGM_")).collect();
            assert!(!found.is_empty(), "{text}");
            asked.extend(found.into_iter().map(str::to_owned));
        }
        for name in asked.iter().filter(|name| name.starts_with("gapless_")) {
            assert!(names.contains(&name.as_str()), "{name} is not served");
        }
        assert!(asked.len() > 8 && asked.contains("DCGM_FI_DEV_FB_USED"), "{asked:?}");
        let served = text(&machine());
        for name in &names {
            assert!(served.contains(&format!("# TYPE {name} ")), "{name}");
        }
    }
}
