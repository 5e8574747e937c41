//! Groups of pods on small clusters, every strategy: all pods are placed or none, where the strategy allows, and a
//! search that tries everything agrees with "it does not fit" and with "it can never fit".

mod support;

use gapless_fleet::desk::Desk;
use gapless_fleet::group::Strategy;
use gapless_fleet::lines::answer;
use gapless_fleet::queue::{AskedGroup, Queue};
use gapless_fleet::words::{Node, Request, Share};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::Dice;

const GIB: u64 = 1 << 30;

fn node(name: &str, gpus: u32, gib: u64, cpus: u64) -> Node {
    let (name, model) = (name.to_owned(), if gib > 50 { "H200" } else { "L4" }.to_owned());
    let cpu_milli = cpus * 1000;
    Node { name, cpu_milli, memory: 1 << 40, gpus, model, gpu_memory: Some(gib * GIB), max_pods: 100 }
}

fn gib(gpus: u32, gib: u64, cpus: u64, models: &str) -> Request {
    let (cpu_milli, models) = (cpus * 1000, models.to_owned());
    Request { cpu_milli, memory: 0, gpus, share: Share::Bytes(gib * GIB), models }
}

/// What is left of a node: bytes of each GPU, thousandths of CPUs.
#[derive(Clone)]
struct Left<'a>(&'a Node, Vec<u64>, u64);

impl Left<'_> {
    /// All ways to take a request from it.
    fn without(&self, request: &Request) -> Vec<Self> {
        let Share::Bytes(bytes) = request.share else { panic!("bytes") };
        if !request.accepts(&self.0.model) || self.2 < request.cpu_milli {
            return Vec::new();
        }
        let sets = (0u32..1 << self.1.len()).filter(|set| set.count_ones() == request.gpus);
        let one = |set: u32| {
            let mut left = self.clone();
            left.2 -= request.cpu_milli;
            for (gpu, free) in left.1.iter_mut().enumerate().filter(|(gpu, _)| set >> gpu & 1 == 1) {
                let _ = gpu;
                *free = free.checked_sub(bytes)?;
            }
            Some(left)
        };
        sets.filter_map(one).collect()
    }
}

/// True if some choice of nodes and GPUs holds all requests; `used`: the nodes of those before.
fn fits(all: &[Left<'_>], requests: &[Request], strategy: Strategy, used: &mut Vec<usize>) -> bool {
    let Some((first, rest)) = requests.split_first() else { return true };
    (0..all.len()).any(|node| {
        let is_allowed = match strategy {
            Strategy::StrictPack => used.iter().all(|other| *other == node),
            Strategy::StrictSpread => !used.contains(&node),
            Strategy::Pack | Strategy::Spread => true,
        };
        is_allowed
            && all[node].without(first).into_iter().any(|left| {
                let mut all = all.to_vec();
                all[node] = left;
                used.push(node);
                let found = fits(&all, rest, strategy, used);
                used.pop();
                found
            })
    })
}

#[test]
fn a_group_is_placed_whole_or_not_at_all() {
    let (mut placed, mut refused, mut never) = (0, 0, 0);
    for seed in 1..=300u64 {
        let mut dice = Dice(seed);
        let nodes: Vec<Node> = (0..1 + dice.below(4))
            .map(|at| node(&format!("n{at}"), 1 + dice.below(3) as u32, [24, 80][dice.below(2) as usize], 8))
            .collect();
        let mut queue = Queue::new(nodes.clone());
        let mut left: Vec<Left<'_>> = nodes
            .iter()
            .map(|node| Left(node, vec![node.units(); node.gpus as usize], node.cpu_milli))
            .collect();
        let empty = left.clone();
        for group in 0..4 {
            let pods: Vec<(String, Request)> = (0..1 + dice.below(4))
                .map(|pod| {
                    let models = ["", "", "H200", "L4"][dice.below(4) as usize];
                    let request = gib(1 + dice.below(2) as u32, 1 + dice.below(50), dice.below(4), models);
                    (format!("{group}.{pod}"), request)
                })
                .collect();
            let requests: Vec<Request> = pods.iter().map(|(_, request)| request.clone()).collect();
            let strategy = Strategy::ALL[dice.below(4) as usize];
            let before = (queue.desk().free(), queue.desk().pods());
            let case = format!("seed {seed} {strategy:?} {requests:?}");
            match queue.ask_group(&format!("g{group}"), pods.clone(), strategy).expect("a valid group") {
                AskedGroup::Placed(places) => {
                    placed += 1;
                    let names: BTreeSet<&str> = places.iter().map(|place| place.node.as_str()).collect();
                    match strategy {
                        Strategy::StrictPack => assert_eq!(names.len(), 1, "{case}"),
                        Strategy::StrictSpread => assert_eq!(names.len(), pods.len(), "{case}"),
                        Strategy::Pack | Strategy::Spread => {}
                    }
                    for (request, place) in requests.iter().zip(&places) {
                        let at = nodes.iter().position(|node| node.name == place.node).expect("a node");
                        assert!(request.accepts(&nodes[at].model), "{case}");
                        assert_eq!(place.gpus.len(), request.gpus as usize);
                        left[at].2 -= request.cpu_milli;
                        for gpu in &place.gpus {
                            let free = &mut left[at].1[usize::from(*gpu)];
                            *free = free.checked_sub(place.units).unwrap_or_else(|| panic!("{case}"));
                        }
                    }
                    let again = queue.ask_group(&format!("g{group}"), pods, strategy);
                    assert_eq!(again, Ok(AskedGroup::Placed(places)), "a repeated request");
                }
                AskedGroup::Waits(..) => {
                    refused += 1;
                    assert_eq!((queue.desk().free(), queue.desk().pods()), before, "{case}");
                    if strategy == Strategy::StrictSpread {
                        assert!(!fits(&left, &requests, strategy, &mut Vec::new()), "{case}");
                    }
                    queue.free(&format!("g{group}"));
                }
                AskedGroup::Never(..) => {
                    never += 1;
                    assert_eq!((queue.desk().free(), queue.desk().pods()), before, "{case}");
                    assert!(!fits(&empty, &requests, strategy, &mut Vec::new()), "{case}");
                }
            }
            queue.desk().check().expect("the account is right");
        }
    }
    assert!(placed > 300 && refused > 50 && never > 300, "{placed} {refused} {never}");
}

#[test]
fn soft_strategies_do_what_they_can() {
    let desk = || Desk::new(vec![node("a", 2, 80, 8), node("b", 2, 80, 8), node("c", 1, 80, 8)]);
    let pods = |count: u32, gib_each: u64| -> Vec<(String, Request)> {
        (0..count).map(|at| (at.to_string(), gib(1, gib_each, 0, ""))).collect()
    };
    let nodes = |count, gib_each, strategy| {
        let places = desk().create_group(&pods(count, gib_each), strategy).ok()?;
        Some(places.iter().map(|place| place.node.clone()).collect::<BTreeSet<_>>().len())
    };
    assert_eq!(nodes(2, 60, Strategy::Pack), Some(1), "both fit on one node");
    assert_eq!(nodes(3, 60, Strategy::Pack), Some(2));
    assert_eq!(nodes(3, 60, Strategy::StrictPack), None);
    assert_eq!(nodes(3, 10, Strategy::Spread), Some(3));
    assert_eq!(nodes(4, 10, Strategy::Spread), Some(3), "there is no fourth node");
    assert_eq!(nodes(4, 10, Strategy::StrictSpread), None);
    assert_eq!(nodes(5, 60, Strategy::Pack), Some(3));
    assert_eq!(nodes(6, 60, Strategy::Pack), None);
}

#[test]
fn a_group_waits_in_line_and_is_served_whole() {
    let mut queue = Queue::new(vec![node("a", 2, 80, 8)]);
    let mut said = |line: Value| -> Value {
        serde_json::from_str(&answer(&mut queue, &line.to_string())).expect("an answer is JSON")
    };
    let pod = |name: &str| json!({"name": name, "gpus": 1, "gpu_memory": "60GiB"});
    let group = json!({"op": "group", "id": "g", "strategy": "PACK", "pods": [pod("g.0"), pod("g.1")]});
    said(json!({"op": "ask", "pod": pod("p")}));
    assert_eq!(said(group.clone())["waits"], 0);
    assert_eq!(said(group.clone())["waits"], 0, "asked again");
    assert_eq!(said(json!({"op": "state"}))["waiting"], 1);
    let other = json!({"op": "group", "id": "h", "strategy": "PACK", "pods": [pod("g.1"), pod("h.1")]});
    assert!(said(other)["error"].as_str().is_some_and(|why| why.contains("free it first")));
    assert_eq!(said(json!({"op": "ask", "pod": pod("g.1")}))["waits"], 0, "it waits with its group");
    let freed = said(json!({"op": "free", "id": "p"}));
    let ids: Vec<&str> =
        freed["placed"].as_array().expect("places").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["g.0", "g.1"]);
    assert_eq!(said(group.clone())["places"], freed["placed"], "asked again");
    // One pod is free: the group is not asked for again as a whole.
    said(json!({"op": "free", "id": "g.0"}));
    assert!(said(group)["error"].as_str().is_some_and(|why| why.contains("g.1")));
    let never =
        json!({"op": "group", "id": "n", "strategy": "STRICT_SPREAD", "pods": [pod("n.0"), pod("n.1")]});
    assert_eq!(said(never)["never"], "too-large");
    assert_eq!(said(json!({"op": "free", "id": "g.1"}))["known"], true);
    assert_eq!(said(json!({"op": "state"}))["pods"], 0);
    assert_eq!(said(json!({"op": "check"}))["ok"], true);
}
