//! Three replicas that all get every pod, over an API server that drops answers, is busy, forgets versions, comes back
//! from backups, and changes nodes and pods meanwhile: nodes are made again, and GPUs are lost. No byte is promised
//! twice, and in the end each pod that fits is placed. `CHAOS=1000` sets the number of rounds, `CHAOS_SECONDS=600` the
//! time instead; `cargo xtask bench fleet chaos` is that.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::Fake;
use gapless_kube::objects::{GPUS as GPUS_OF, UUIDS};
use replica::{GIB, Replica, asks, none_is_over_booked};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NODES: usize = 3;
const GPUS: u32 = 4;
const PODS: usize = 20;

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % most.max(1) as u64) as usize
    }
}

fn waiting(fake: &Fake) -> Vec<Value> {
    fake.all("pods").into_iter().filter(|pod| pod["spec"]["nodeName"].is_null()).collect()
}

/// A scheduler that tries all waiting pods, and whose replica is killed now and then.
fn schedule(fake: &Fake, seed: u64, stop: &AtomicBool) {
    let mut dice = Dice(seed);
    let mut replica = Replica::start(fake);
    while !stop.load(Ordering::Relaxed) {
        if dice.below(40) == 0 {
            replica = Replica::start(fake);
        }
        let mut pods = waiting(fake);
        if pods.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let pod = pods.swap_remove(dice.below(pods.len()));
        replica.schedule(fake, &pod);
    }
}

/// Causes a random event.
fn happen(
    fake: &Fake,
    dice: &mut Dice,
    round: usize,
    backup: &mut Option<std::collections::BTreeMap<String, Value>>,
) {
    let node = format!("/api/v1/nodes/n{}", dice.below(NODES));
    let pods = fake.all("pods");
    let any = |dice: &mut Dice| {
        pods[dice.below(pods.len())]["metadata"]["name"].as_str().expect("a name").to_owned()
    };
    match dice.below(14) {
        0 => fake.drop_every.store([0, 7, 13][dice.below(3)], Ordering::Relaxed),
        1 => fake.busy_every.store([0, 5, 11][dice.below(3)], Ordering::Relaxed),
        2 => fake.forget(),
        3 => *backup = Some(fake.backup()),
        4 => {
            if let Some(backup) = backup.take() {
                fake.restore_from(backup);
            }
        }
        5 | 6 => fake.note(&node, "note", &round.to_string()),
        7 => fake.note(&format!("/api/v1/namespaces/default/pods/{}", any(dice)), "note", &round.to_string()),
        8..10 => {
            fake.delete(&format!("/api/v1/namespaces/default/pods/{}", any(dice)));
            let size = ["20GiB", "40GiB", "80GiB"][dice.below(3)];
            fake.pod(&format!("q{round:05}"), &asks(size));
        }
        10 if dice.below(4) == 0 => {
            let name = node.rsplit('/').next().unwrap_or_default();
            fake.delete(&node);
            fake.node_of(name, &format!("uid-{name}-{round}"), GPUS, 80);
        }
        11 => {
            // A GPU is lost, so the places of those behind it shift; or it is back.
            let name = node.rsplit('/').next().unwrap_or_default();
            let lost = dice.below(2 * GPUS as usize);
            let left = (0..GPUS as usize).filter(|gpu| *gpu != lost).map(|gpu| format!("GPU-{name}-{gpu}"));
            let left: Vec<String> = left.collect();
            fake.notes(&node, &[(GPUS_OF, &left.len().to_string()), (UUIDS, &left.join(","))]);
        }
        _ => std::thread::sleep(Duration::from_millis(5)),
    }
}

/// The length of the run: rounds, and the least time.
fn length() -> (usize, Duration) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("CHAOS_SECONDS") {
        Some(seconds) => (0, Duration::from_secs(seconds)),
        None => (number("CHAOS").unwrap_or(300) as usize, Duration::ZERO),
    }
}

#[test]
fn three_replicas_in_chaos_promise_no_byte_twice() {
    let (least, time) = length();
    let began = Instant::now();
    let fake = Fake::start();
    (0..NODES).for_each(|i| fake.node(&format!("n{i}"), GPUS, 80));
    let mut dice = Dice(1);
    for i in 0..PODS {
        fake.pod(&format!("p{i:05}"), &asks(["20GiB", "40GiB", "80GiB"][dice.below(3)]));
    }
    let stop = AtomicBool::new(false);
    // If the judge finds a violation, the schedulers end too.
    struct Stops<'a>(&'a AtomicBool);
    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let mut rounds = 0;
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (fake, stop) = (&fake, &stop);
            scope.spawn(move || schedule(fake, seed, stop));
        }
        let _stops = Stops(&stop);
        let mut backup = None;
        while rounds < least || began.elapsed() < time {
            rounds += 1;
            let round = rounds;
            happen(&fake, &mut dice, round, &mut backup);
            none_is_over_booked(&fake, 80 * GIB);
            std::thread::sleep(Duration::from_millis(5));
        }
        fake.drop_every.store(0, Ordering::Relaxed);
        fake.busy_every.store(0, Ordering::Relaxed);
    });
    none_is_over_booked(&fake, 80 * GIB);
    // All replicas have ended. A new one without their state places the pods that fit, and removes leftovers.
    let last = Replica::start(&fake);
    for turn in 1..4 {
        last.extender.expire(std::time::Instant::now() + gapless_kube::limits::BOOKED_FOR * 2 * turn);
        for pod in waiting(&fake) {
            last.schedule(&fake, &pod);
        }
    }
    none_is_over_booked(&fake, 80 * GIB);
    last.extender.check().expect("the account is right");
    for pod in waiting(&fake) {
        let left = last.filter(&fake, &pod);
        assert_eq!(left["NodeNames"], json!([]), "{pod} fits, and waits");
    }
    let (bound, calls) = (fake.bound.load(Ordering::Relaxed), fake.calls.load(Ordering::Relaxed));
    let took = began.elapsed().as_secs();
    println!(
        "{took} s, {rounds} rounds, {calls} calls of the API server, {bound} bindings: no byte promised twice"
    );
    assert!(bound > 0, "nothing was bound");
    fake.stop();
}
