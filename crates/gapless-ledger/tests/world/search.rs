//! All interleavings of small worlds, and random walks through large ones.

use super::{Action, Budget, CAPACITY, Server, World, server};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// A world that violates a rule, and the actions that led there.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) what: String,
    pub(crate) way: Vec<Action>,
}

/// The rule that a world violates, if any; checked after each step.
fn wrong(world: &World) -> Option<String> {
    world.server.judge().or_else(|| world.lie.clone())
}

/// A pod that fits and is not placed although no more faults happen, if there is one.
fn unplaced(world: &World) -> Option<String> {
    let mut world = world.clone();
    let mut closed = world.finish();
    for node in 0..world.server.nodes.len() {
        world.server.change(node, |node| {
            node.gpus = (0..node.all).collect();
            node.knows_memory = true;
        });
    }
    for _ in 0..2 {
        for node in 0..world.server.nodes.len() {
            world.sweep(0, node);
            closed.extend(world.finish());
        }
        for pod in 0..world.server.pods.len() {
            for (node, gpu) in places(&world.server) {
                if world.server.pods[pod].exists && world.server.pods[pod].node.is_none() {
                    world.start(0, pod, node, gpu);
                    closed.extend(world.finish());
                }
            }
        }
    }
    if let Some(what) = wrong(&world) {
        return Some(what);
    }
    let server = &world.server;
    let left = server.pods.iter().position(|pod| pod.exists && pod.node.is_none())?;
    let is_free = |&(node, gpu): &(usize, usize)| {
        let name = server::gpu(node, gpu);
        !closed.contains(&node) && server.promised(node, &name) + server.pods[left].wants <= CAPACITY
    };
    let (node, gpu) = places(server).into_iter().find(is_free)?;
    Some(format!("pod {left} has no place, though GPU {gpu} of node {node} has room: {server:?}"))
}

fn places(server: &Server) -> Vec<(usize, usize)> {
    let of = |node: usize| (0..server.nodes[node].all).map(move |gpu| (node, gpu));
    (0..server.nodes.len()).flat_map(of).collect()
}

/// The result of a search.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) states: usize,
    pub(crate) ends: usize,
    pub(crate) wrong: Option<Wrong>,
}

/// Visits every reachable world once, up to `most` of them.
pub(crate) fn exhaust(first: &World, most: usize) -> Seen {
    let hasher = RandomState::new();
    let mut known = HashSet::new();
    let mut seen = Seen::default();
    // The way to the world on top is in the stack.
    let mut stack: Vec<(World, Vec<Action>)> = vec![(first.clone(), first.actions())];
    let mut way: Vec<Action> = Vec::new();
    while let Some((world, left)) = stack.last_mut() {
        let Some(action) = left.pop() else {
            stack.pop();
            way.pop();
            continue;
        };
        let mut next = world.clone();
        next.act(&action);
        if !known.insert(hasher.hash_one(&next)) {
            continue;
        }
        seen.states += 1;
        if seen.states >= most {
            return seen;
        }
        let actions = next.actions();
        let mut what = wrong(&next);
        // The world is at an end: all replicas are idle.
        if what.is_none() && next.replicas.iter().all(super::Replica::is_idle) {
            seen.ends += 1;
            what = unplaced(&next);
        }
        if let Some(what) = what {
            way.push(action);
            seen.wrong = Some(Wrong { what, way });
            return seen;
        }
        way.push(action);
        stack.push((next, actions));
    }
    seen
}

/// Pseudo-random numbers, the same in every run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % most.max(1) as u64) as usize
    }
}

/// Random walks: three replicas, each given every pod. Returns the number of steps.
pub(crate) fn walk(seed: u64, walks: usize) -> Result<usize, Wrong> {
    let mut dice = Dice(seed);
    let mut steps = 0;
    for _ in 0..walks {
        let (whole, half) = (CAPACITY, CAPACITY / 2);
        let wants: Vec<u64> = (0..4).map(|_| if dice.below(2) == 0 { whole } else { half }).collect();
        let budget = Budget { starts: 14, faults: 6, events: 5 };
        let mut world = World::new(Server::new(&[2, 1], &wants), 3, budget, all_events(2, 4, 3));
        let mut way = Vec::new();
        for _ in 0..200 {
            let actions = world.actions();
            if actions.is_empty() {
                break;
            }
            // Work that has begun goes on more often than other actions happen.
            let is_work = |action: &&Action| matches!(action, Action::Step { fault: None, .. });
            let work: Vec<&Action> = actions.iter().filter(is_work).collect();
            let action = match dice.below(3) {
                0 | 1 if !work.is_empty() => work[dice.below(work.len())].clone(),
                _ => actions[dice.below(actions.len())].clone(),
            };
            world.act(&action);
            way.push(action);
            steps += 1;
            if let Some(what) = wrong(&world) {
                return Err(Wrong { what, way });
            }
        }
        if let Some(what) = unplaced(&world) {
            return Err(Wrong { what, way });
        }
    }
    Ok(steps)
}

/// All events of a cluster of this size.
pub(crate) fn all_events(nodes: usize, pods: usize, replicas: usize) -> Vec<Action> {
    let mut all = vec![Action::Backup, Action::Restore];
    all.extend((0..replicas).map(Action::Restart));
    all.extend(
        (0..pods).flat_map(|pod| [Action::Delete(pod), Action::EditClaim(pod), Action::TouchPod(pod)]),
    );
    let of_node = |node| {
        let memory = |is_known| Action::SetMemory(node, is_known);
        [
            Action::LoseGpu(node),
            Action::ReturnGpus(node),
            Action::Kubelet(node),
            Action::MakeAnew(node),
            memory(true),
            memory(false),
        ]
    };
    all.extend((0..nodes).flat_map(of_node));
    all.extend((0..nodes).flat_map(|node| (0..replicas).map(move |replica| Action::Sweep { replica, node })));
    all
}

/// A small world and its name.
pub(crate) type Scope = (&'static str, World);

/// A world of these nodes, by their GPUs, and pods, by the bytes that they want.
fn world(nodes: &[usize], pods: &[u64], replicas: usize, budget: [u8; 3], events: &[Action]) -> World {
    let [starts, faults, happenings] = budget;
    let budget = Budget { starts, faults, events: happenings };
    World::new(Server::new(nodes, pods), replicas, budget, events.to_vec())
}

const WHOLE: u64 = CAPACITY;
const HALF: u64 = CAPACITY / 2;

/// Worlds in which replicas race, and answers are lost.
pub(crate) fn races() -> Vec<Scope> {
    let (gone, touched) = (Action::Delete(0), Action::TouchPod(0));
    let restart = [Action::Restart(0), Action::Kubelet(0)];
    let sweep = Action::Sweep { replica: 0, node: 0 };
    vec![
        ("one pod, two replicas", world(&[2], &[WHOLE], 2, [2, 2, 0], &[])),
        ("one pod, three replicas", world(&[1], &[WHOLE], 3, [3, 1, 0], &[])),
        ("two pods, one GPU", world(&[1], &[WHOLE; 2], 2, [2, 1, 0], &[])),
        ("one pod, and one who ends binds", world(&[1], &[WHOLE], 2, [2, 0, 1], &[sweep])),
        ("two pods that share", world(&[1], &[HALF; 2], 2, [2, 0, 1], &[touched])),
        ("two nodes", world(&[1, 1], &[WHOLE], 2, [2, 1, 1], &[gone])),
        ("a restart with a bind under way", world(&[1], &[WHOLE; 2], 2, [2, 1, 1], &restart)),
    ]
}

/// Worlds in which GPUs are lost, nodes made again, backups restored and annotations edited.
pub(crate) fn upheavals() -> Vec<Scope> {
    let lost = [Action::LoseGpu(0), Action::ReturnGpus(0)];
    let memory = [Action::SetMemory(0, false), Action::SetMemory(0, true)];
    let backup = [Action::Backup, Action::Delete(0), Action::Restore];
    let anew = [Action::EditClaim(0), Action::MakeAnew(0), Action::Restart(0)];
    vec![
        ("a GPU is lost", world(&[2], &[WHOLE; 2], 1, [2, 0, 2], &lost)),
        ("the memory becomes known", world(&[1], &[WHOLE; 2], 1, [2, 0, 2], &memory)),
        ("a backup brings a pod back", world(&[1], &[WHOLE; 2], 1, [2, 0, 3], &backup)),
        ("a node is made anew and an annotation edited", world(&[1], &[WHOLE, HALF], 1, [2, 0, 3], &anew)),
    ]
}

/// The way to a violation, for people: all actions except usual next steps.
pub(crate) fn told(wrong: &Wrong) -> String {
    let is_usual = |action: &&Action| matches!(action, Action::Step { fault: None, .. });
    let main: Vec<&Action> = wrong.way.iter().filter(|action| !is_usual(action)).collect();
    format!("{}\n  after {} steps, among them {main:?}", wrong.what, wrong.way.len())
}
