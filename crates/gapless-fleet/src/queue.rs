//! A desk at which requests wait: a request that does not fit now is placed as soon as a release makes room.
//!
//! Waiting requests are tried in the order of their calls. A younger one may go first if it fits and an older one
//! does not, but an older one is passed at most [`MOST_PASSED`] times. Then all younger ones wait until it is placed.
//! So no request starves, and the order of placements depends only on the order of calls.

use crate::desk::{Desk, Place};
use crate::error::Result;
use crate::group::Strategy;
use crate::sim::Cause;
use crate::words::{Node, Request};

/// The number of younger requests that may be placed before an older one that waits.
pub const MOST_PASSED: u32 = 64;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Placed(Place),
    /// It waits behind this many others, for this reason.
    Waits(usize, Cause),
    /// No node is large enough, even if it is empty, so waiting would not help.
    Never(Cause),
}

/// A cluster and the requests that wait for it.
#[derive(Debug)]
pub struct Queue {
    desk: Desk,
    /// The oldest first.
    waiting: Vec<Waiting>,
}

/// The answer to the request of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedGroup {
    /// In the order of its pods.
    Placed(Vec<Place>),
    Waits(usize, Cause),
    Never(Cause, String),
}

#[derive(Debug)]
struct Waiting {
    id: String,
    wish: Wish,
    /// Younger requests that were placed meanwhile.
    passed: u32,
}

#[derive(Debug)]
enum Wish {
    Pod(Request),
    /// Pods with their ids, which are placed together.
    Group(Vec<(String, Request)>, Strategy),
}

impl Waiting {
    fn is_of(&self, id: &str) -> bool {
        self.id == id || matches!(&self.wish, Wish::Group(pods, _) if pods.iter().any(|(pod, _)| pod == id))
    }

    /// Its places, if it fits now.
    fn create(&self, desk: &Desk) -> std::result::Result<Vec<(String, Place)>, Cause> {
        match &self.wish {
            Wish::Pod(request) => desk.create(&self.id, request).map(|place| vec![(self.id.clone(), place)]),
            Wish::Group(pods, strategy) => {
                let places = desk.create_group(pods, *strategy)?;
                Ok(pods.iter().map(|(id, _)| id.clone()).zip(places).collect())
            }
        }
    }
}

impl Queue {
    pub fn new(nodes: Vec<Node>) -> Queue {
        Queue { desk: Desk::new(nodes), waiting: Vec::new() }
    }

    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Places a request, or lets it wait. A repeated id gets the same answer.
    pub fn ask(&mut self, id: &str, request: &Request) -> Asked {
        if let Some(place) = self.desk.find(id) {
            return Asked::Placed(place);
        }
        if let Some(at) = self.waiting.iter().position(|one| one.is_of(id)) {
            let cause = match &self.waiting[at].wish {
                Wish::Pod(request) => self.desk.refusal(request),
                Wish::Group(..) => None,
            };
            return Asked::Waits(at, cause.unwrap_or(Cause::Pods));
        }
        let tried = if self.is_barred() {
            self.desk.learn(id, request);
            Err(self.desk.refusal(request).unwrap_or(Cause::Pods))
        } else {
            self.desk.create(id, request)
        };
        match tried {
            Ok(place) => {
                for one in &mut self.waiting {
                    one.passed += 1;
                }
                Asked::Placed(place)
            }
            Err(cause @ (Cause::Model | Cause::TooLarge)) => Asked::Never(cause),
            Err(cause) => {
                let wish = Wish::Pod(request.clone());
                self.waiting.push(Waiting { id: id.to_owned(), wish, passed: 0 });
                Asked::Waits(self.waiting.len() - 1, cause)
            }
        }
    }

    /// Places all pods of a group or none, or lets the group wait. A repeated id gets the same answer; an error if some
    /// of its pods are known otherwise.
    pub fn ask_group(
        &mut self,
        id: &str,
        pods: Vec<(String, Request)>,
        strategy: Strategy,
    ) -> std::result::Result<AskedGroup, String> {
        if let Some(at) = self.waiting.iter().position(|one| one.id == id) {
            return Ok(AskedGroup::Waits(at, Cause::GpusFragmented));
        }
        let held = pods.iter().filter(|(pod, _)| self.desk.find(pod).is_some()).count();
        if held < pods.len() {
            let is_known =
                |pod: &str| self.desk.find(pod).is_some() || self.waiting.iter().any(|one| one.is_of(pod));
            if let Some((pod, _)) = pods.iter().find(|(pod, _)| is_known(pod)) {
                return Err(format!(
                    "pod {pod:?} of group {id:?} has a place or waits already: free it first"
                ));
            }
            if let Some((cause, why)) = self.desk.never(&pods, strategy) {
                return Ok(AskedGroup::Never(cause, why));
            }
        }
        let tried = if self.is_barred() && held == 0 {
            Err(Cause::Elsewhere)
        } else {
            self.desk.create_group(&pods, strategy)
        };
        Ok(match tried {
            Ok(places) => {
                if held == 0 {
                    self.waiting.iter_mut().for_each(|one| one.passed += 1);
                }
                AskedGroup::Placed(places)
            }
            Err(cause) => {
                let wish = Wish::Group(pods, strategy);
                self.waiting.push(Waiting { id: id.to_owned(), wish, passed: 0 });
                AskedGroup::Waits(self.waiting.len() - 1, cause)
            }
        })
    }

    /// True if one that waits was passed often enough, so that all others wait behind it.
    fn is_barred(&self) -> bool {
        self.waiting.iter().any(|one| one.passed >= MOST_PASSED)
    }

    /// Frees the booking of `id`, or takes it out of the queue, and places waiting requests. False if `id` is unknown.
    /// The id of a group only takes it out of the queue: placed pods are freed by their own ids.
    pub fn free(&mut self, id: &str) -> (bool, Vec<(String, Place)>) {
        let waited = self.waiting.len();
        self.waiting.retain(|one| one.id != id);
        let known = self.desk.delete(id) || self.waiting.len() < waited;
        self.desk.forget(id);
        (known, self.serve())
    }

    /// Adds a node, or opens it again, and places waiting requests. False if a node of this name has other capacities.
    pub fn add_node(&mut self, node: Node) -> (bool, Vec<(String, Place)>) {
        let is_same = self.desk.add_node(node);
        (is_same, self.serve())
    }

    /// Closes a node to further pods. False if there is no such node.
    pub fn close_node(&mut self, name: &str) -> bool {
        self.desk.close_node(name)
    }

    /// Books a pod at its existing place, as after a restart.
    pub fn restore(&mut self, id: &str, node: &str, request: &Request, gpus: &[u16]) -> Result<()> {
        self.desk.restore(id, node, request, gpus)
    }

    /// Places waiting requests that fit, the oldest first.
    fn serve(&mut self) -> Vec<(String, Place)> {
        let mut placed = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &self.waiting[at];
            match one.create(&self.desk) {
                Ok(places) => {
                    self.waiting.remove(at);
                    for older in &mut self.waiting[..at] {
                        older.passed += 1;
                    }
                    placed.extend(places);
                    // This placement may have brought an older one to its limit.
                    if self.waiting[..at].iter().any(|older| older.passed >= MOST_PASSED) {
                        break;
                    }
                }
                Err(_) if one.passed >= MOST_PASSED => break,
                Err(_) => at += 1,
            }
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Share;

    const GIB: u64 = 1 << 30;

    fn node(name: &str, gpus: u32) -> Node {
        Node {
            name: name.to_owned(),
            cpu_milli: 64_000,
            memory: 64 * GIB,
            gpus,
            model: "H200".to_owned(),
            gpu_memory: Some(80 * GIB),
            max_pods: 1000,
        }
    }

    fn gib(gib: u64) -> Request {
        Request { cpu_milli: 0, memory: 0, gpus: 1, share: Share::Bytes(gib * GIB), models: String::new() }
    }

    fn placed(asked: &Asked) -> bool {
        matches!(asked, Asked::Placed(_))
    }

    #[test]
    fn what_does_not_fit_waits_until_something_is_freed() {
        let mut queue = Queue::new(vec![node("a", 1)]);
        assert!(placed(&queue.ask("x", &gib(50))));
        assert_eq!(queue.ask("y", &gib(60)), Asked::Waits(0, Cause::GpusFull));
        assert_eq!(queue.ask("y", &gib(60)), Asked::Waits(0, Cause::GpusFull), "asked again");
        assert!(placed(&queue.ask("z", &gib(30))), "it fits beside x");
        assert_eq!(queue.free("z"), (true, Vec::new()), "y needs more than that");
        let (known, served) = queue.free("x");
        assert!(known);
        assert_eq!(served.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["y"]);
        assert_eq!(queue.free("nobody"), (false, Vec::new()));
        queue.desk().check().expect("the account is right");
    }

    #[test]
    fn what_can_never_fit_does_not_wait() {
        let mut queue = Queue::new(vec![node("a", 1)]);
        assert_eq!(queue.ask("x", &gib(81)), Asked::Never(Cause::TooLarge));
        let other = Request { models: "A100".to_owned(), ..gib(1) };
        assert_eq!(queue.ask("y", &other), Asked::Never(Cause::Model));
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn who_waits_is_passed_a_bounded_number_of_times() {
        let mut queue = Queue::new(vec![node("a", 1)]);
        assert!(placed(&queue.ask("first", &gib(40))));
        assert!(!placed(&queue.ask("large", &gib(80))));
        let mut passed = 0;
        for turn in 0..1000 {
            let id = format!("small{turn}");
            if !placed(&queue.ask(&id, &gib(1))) {
                break;
            }
            passed += 1;
            queue.free(&id);
        }
        assert_eq!(passed, MOST_PASSED);
        assert!(!placed(&queue.ask("behind", &gib(1))), "everybody waits behind it now");
        let (_, served) = queue.free("first");
        assert_eq!(served.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["large"]);
        let (_, served) = queue.free("large");
        let names: Vec<&str> = served.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(names, ["small64", "behind"], "in the order in which they asked");
    }

    #[test]
    fn a_new_node_serves_those_who_wait_and_a_closed_one_does_not() {
        let mut queue = Queue::new(vec![node("a", 1)]);
        assert!(placed(&queue.ask("x", &gib(80))));
        assert!(!placed(&queue.ask("y", &gib(80))));
        let (is_new, served) = queue.add_node(node("b", 1));
        assert!(is_new);
        assert_eq!((served[0].0.as_str(), served[0].1.node.as_str()), ("y", "b"));
        assert!(queue.close_node("a") && !queue.close_node("nowhere"));
        assert_eq!(queue.free("x").1.len(), 0);
        assert!(!placed(&queue.ask("z", &gib(80))), "a is closed, b is full");
    }

    /// Random asks and frees: the account holds, and a request that fits waits only if an older one is at its limit.
    #[test]
    fn random_programs_keep_the_account_and_leave_nobody_out() {
        for seed in 1..=20u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut dice = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let mut queue = Queue::new(vec![node("a", 2), node("b", 1), node("c", 4)]);
            let mut known: Vec<String> = Vec::new();
            for turn in 0..400 {
                if dice(3) == 0 && !known.is_empty() {
                    let id = known.swap_remove(dice(known.len() as u64) as usize);
                    assert!(queue.free(&id).0);
                } else {
                    let id = format!("p{turn}");
                    let request = Request { gpus: 1 + dice(2) as u32, ..gib(1 + dice(80)) };
                    assert!(!matches!(queue.ask(&id, &request), Asked::Never(_)));
                    known.push(id);
                }
                queue.desk().check().expect("the account is right");
                assert_eq!(queue.desk().pods() + queue.waiting(), known.len());
                for one in &queue.waiting {
                    if one.passed >= MOST_PASSED {
                        break;
                    }
                    let Wish::Pod(request) = &one.wish else { continue };
                    assert!(queue.desk.refusal(request).is_some(), "{} fits and waits", one.id);
                }
            }
        }
    }
}
