//! The published lists, and random clusters.

#![allow(dead_code)] // each test uses its part

use gapless_fleet::arrivals::{Arrivals, shuffled};
use gapless_fleet::policy::Policy;
use gapless_fleet::read;
use gapless_fleet::sim::{self, Options, Run};
use gapless_fleet::words::{MAX_PODS, Node, Pod, Request, Share};
use std::fs::File;
use std::path::PathBuf;

pub(crate) fn data(name: &str) -> File {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/fleet")
        .join(format!("{name}.csv.zst"));
    File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn nodes() -> Vec<Node> {
    read::nodes(&mut data("openb_node_list_gpu_node")).expect("the published nodes")
}

pub(crate) fn pods(list: &str) -> Vec<Pod> {
    read::pods(&mut data(&format!("openb_pod_list_{list}"))).expect("the published pods")
}

pub(crate) fn published_arrivals(nodes: &[Node], pods: &[Pod], seed: i64) -> Arrivals {
    shuffled(pods, nodes, 1000, Some(1.3), seed).expect("arrivals")
}

pub(crate) fn run(nodes: &[Node], pods: &[Pod], arrivals: &Arrivals, policy: &str, options: Options) -> Run {
    sim::run(nodes, pods, arrivals, options, |ledger, mix, random| {
        Policy::named(policy, ledger, mix, random).expect("a known policy")
    })
}

pub(crate) fn node(name: &str, cpus: u64, gpus: u32, model: &str) -> Node {
    let (name, model) = (name.to_owned(), model.to_owned());
    Node {
        name,
        cpu_milli: cpus * 1000,
        memory: cpus << 30,
        gpus,
        model,
        gpu_memory: None,
        max_pods: MAX_PODS,
    }
}

pub(crate) fn request(cpus: u64, gpus: u32, milli: u32, models: &str) -> Request {
    let models = models.to_owned();
    Request { cpu_milli: cpus * 1000, memory: cpus << 30, gpus, share: Share::Milli(milli), models }
}

pub(crate) fn pod(name: &str, request: Request) -> Pod {
    let name = name.to_owned();
    Pod { name, request, created: None, deleted: None, priority: 0, gang: String::new() }
}

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub(crate) fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}
