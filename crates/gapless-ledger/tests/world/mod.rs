//! A cluster in a few bytes: an API server, replicas that run the real machines, and all events that can happen to
//! them. Each action is one step of one of them, so that all interleavings can be tried.

pub(crate) mod search;
mod server;

use gapless_ledger::promise::attempt::Failure;
use gapless_ledger::promise::mutants::{self, Mutant};
use gapless_ledger::promise::{Ask, Attempt, Booking, Entry, NotBooked, Step, Told};
pub(crate) use server::{CAPACITY, Server};

/// Work of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Job {
    pod: usize,
    node: usize,
    /// `None`: only entries are checked.
    attempt: Option<Attempt>,
    booking: Option<Booking>,
    /// The server's life in which the pod and the page were read: connections do not outlive it.
    pod_era: u32,
    page_era: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    jobs: Vec<Job>,
    /// The last entry of each pod that was seen, never forgotten.
    known: Vec<(usize, Entry)>,
    /// Pods of which a deletion was heard.
    dead: Vec<String>,
}

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// The call is carried out, but its answer is lost.
    LostAnswer,
    /// It is refused for now (429), or never arrives.
    Refused,
    /// No answer comes, and the call is carried out later.
    Late,
    /// The call is carried out twice, and the second answer comes.
    Doubled,
}

/// An action that can happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Start {
        replica: usize,
        pod: usize,
        node: usize,
        gpu: usize,
    },
    Step {
        replica: usize,
        job: usize,
        fault: Option<Fault>,
    },
    Late(usize),
    /// This and the actions below are events.
    Sweep {
        replica: usize,
        node: usize,
    },
    Restart(usize),
    Delete(usize),
    LoseGpu(usize),
    ReturnGpus(usize),
    SetMemory(usize, bool),
    EditClaim(usize),
    TouchPod(usize),
    Kubelet(usize),
    MakeAnew(usize),
    Backup,
    Restore,
}

/// Limits on the actions of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) starts: u8,
    pub(crate) faults: u8,
    pub(crate) events: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) server: Server,
    backup: Option<Box<Server>>,
    pub(crate) replicas: Vec<Replica>,
    late: Vec<(usize, Ask)>,
    pub(crate) budget: Budget,
    /// The events that may happen, by their kind.
    events: Vec<Action>,
    /// A false statement of a state machine.
    pub(crate) lie: Option<String>,
}

impl World {
    pub(crate) fn new(server: Server, replicas: usize, budget: Budget, events: Vec<Action>) -> World {
        let replicas = vec![Replica::default(); replicas];
        World { server, backup: None, replicas, late: Vec::new(), budget, events, lie: None }
    }

    /// All actions that can happen now.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (replica, state) in self.replicas.iter().enumerate() {
            for (job, work) in state.jobs.iter().enumerate() {
                all.push(Action::Step { replica, job, fault: None });
                if self.budget.faults > 0 {
                    let faults: &[Fault] = match work.asks() {
                        Some(Ask::Write(..) | Ask::Bind(_) | Ask::Touch { .. }) => {
                            &[Fault::LostAnswer, Fault::Refused, Fault::Late, Fault::Doubled]
                        }
                        Some(_) => &[Fault::Refused],
                        None => &[],
                    };
                    let step = |&fault| Action::Step { replica, job, fault: Some(fault) };
                    all.extend(faults.iter().map(step));
                }
            }
            if self.budget.starts > 0 {
                for pod in 0..self.server.pods.len() {
                    let is_busy = state.jobs.iter().any(|job| job.pod == pod && job.attempt.is_some());
                    let places = (0..self.server.nodes.len())
                        .flat_map(|node| (0..self.server.nodes[node].all).map(move |gpu| (node, gpu)));
                    if !is_busy && self.server.pods[pod].node.is_none() {
                        all.extend(places.map(|(node, gpu)| Action::Start { replica, pod, node, gpu }));
                    }
                }
            }
        }
        all.extend((0..self.late.len()).map(Action::Late));
        if self.budget.events > 0 {
            all.extend(self.events.iter().filter(|event| self.can(event)).cloned());
        }
        all
    }

    fn can(&self, event: &Action) -> bool {
        match event {
            Action::Restore => self.backup.is_some(),
            Action::Backup => self.backup.is_none(),
            Action::Sweep { node, .. } => !self.server.entries(*node).is_empty(),
            // The rules rely on that no node is made again while a bind to it is on its way.
            Action::MakeAnew(node) => {
                let jobs = self.replicas.iter().flat_map(|replica| &replica.jobs);
                let is_late = |(_, ask): &(usize, Ask)| matches!(ask, Ask::Bind(_));
                !jobs.into_iter().any(|job| job.node == *node) && !self.late.iter().any(is_late)
            }
            _ => true,
        }
    }

    pub(crate) fn act(&mut self, action: &Action) {
        match *action {
            Action::Start { replica, pod, node, gpu } => {
                self.budget.starts = self.budget.starts.saturating_sub(1);
                self.start(replica, pod, node, gpu);
            }
            Action::Step { replica, job, fault } => {
                self.budget.faults -= u8::from(fault.is_some());
                let _ = self.step(replica, job, fault);
            }
            Action::Late(at) => {
                let (node, ask) = self.late.remove(at);
                let _ = self.server.call(node, &ask);
            }
            ref event => {
                self.budget.events -= 1;
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: &Action) {
        match *event {
            Action::Sweep { replica, node } => self.sweep(replica, node),
            Action::Restart(replica) => self.replicas[replica] = Replica::default(),
            Action::Delete(pod) => {
                self.server.pods[pod].exists = false;
                let uid = server::uid(pod);
                self.replicas.iter_mut().for_each(|replica| replica.dead.push(uid.clone()));
            }
            // The first GPU is lost, so that the indices of the others shift.
            Action::LoseGpu(node) => self.server.change(node, |node| node.gpus.retain(|gpu| *gpu > 0)),
            Action::ReturnGpus(node) => self.server.change(node, |node| node.gpus = (0..node.all).collect()),
            Action::SetMemory(node, is_known) => {
                self.server.change(node, |node| node.knows_memory = is_known);
            }
            Action::EditClaim(pod) => self.server.edit_claim(pod),
            Action::TouchPod(pod) => self.server.touch(pod),
            Action::Kubelet(node) => self.server.change(node, |_| {}),
            Action::MakeAnew(node) => self.server.make_anew(node),
            Action::Backup => self.backup = Some(Box::new(self.server.clone())),
            Action::Restore => {
                let era = self.server.era + 1;
                if let Some(backup) = &self.backup {
                    self.server = (**backup).clone();
                    self.server.era = era;
                }
                // Late calls are lost, because no server ran during the restore.
                self.late.clear();
            }
            _ => {}
        }
    }

    pub(crate) fn start(&mut self, replica: usize, pod: usize, node: usize, gpu: usize) {
        let amount = self.server.amount(pod, node);
        let gpus = vec![server::gpu(node, gpu)];
        let attempt =
            Attempt::new(&server::uid(pod), &server::name(pod), &server::node_name(node), gpus, amount);
        let job = Job { pod, node, attempt: Some(attempt), booking: None, pod_era: 0, page_era: 0 };
        self.replicas[replica].jobs.push(job);
    }

    /// Checks all entries of a node, and ends binds that are on their way.
    pub(crate) fn sweep(&mut self, replica: usize, node: usize) {
        let uids = (0..self.server.pods.len()).map(server::uid).collect();
        let booking =
            Booking::new(&server::node_name(node), Vec::new(), Vec::new()).with_suspects(uids, true);
        let job =
            Job { pod: usize::MAX, node, attempt: None, booking: Some(booking), pod_era: 0, page_era: 0 };
        self.replicas[replica].jobs.push(job);
    }

    /// One step of a job. Returns the node, if it was found closed.
    fn step(&mut self, replica: usize, at: usize, fault: Option<Fault>) -> Option<usize> {
        let mut job = self.replicas[replica].jobs[at].clone();
        if let Some(ask) = job.asks() {
            let era = self.server.era;
            match (&job.booking, &ask) {
                (Some(_), Ask::Node) => job.page_era = era,
                (None, Ask::Pod(_)) => job.pod_era = era,
                _ => {}
            }
            let opened = if job.booking.is_some() { job.page_era } else { job.pod_era };
            let is_cut = opened != era && !mutants::is(Mutant::PageOutlivesServer);
            let told = if is_cut { Told::Nothing } else { self.call(job.node, &ask, fault) };
            if let Told::Node(node) = &told
                && node.is_founded
            {
                for entry in &node.entries {
                    let known = &mut self.replicas[replica].known;
                    known.retain(|(_, other)| other.uid != entry.uid);
                    known.push((job.node, entry.clone()));
                    known.sort_by(|(_, one), (_, other)| one.uid.cmp(&other.uid));
                }
            }
            match (&mut job.booking, &mut job.attempt) {
                (Some(booking), _) => booking.hear(told),
                (None, Some(attempt)) => attempt.hear(told),
                (None, None) => {}
            }
        }
        let is_over = job.go_on(&self.replicas[replica]);
        if let Some(Step::Bound(_)) = job.attempt.as_ref().map(Attempt::step) {
            let pod = &self.server.pods[job.pod];
            if pod.exists && pod.node != Some(job.node) {
                self.lie = Some(format!("pod {} is not bound, and a replica says so", job.pod));
            }
        }
        let last = job.attempt.as_ref().map(Attempt::step);
        let is_closed = matches!(last, Some(Step::Failed(Failure::NotBooked(NotBooked::Closed { .. }))));
        let node = job.node;
        if is_over {
            self.replicas[replica].jobs.remove(at);
        } else {
            self.replicas[replica].jobs[at] = job;
        }
        is_closed.then_some(node)
    }

    fn call(&mut self, node: usize, ask: &Ask, fault: Option<Fault>) -> Told {
        match fault {
            None => self.server.call(node, ask),
            Some(Fault::Refused) => Told::Nothing,
            Some(Fault::LostAnswer) => {
                let _ = self.server.call(node, ask);
                Told::Nothing
            }
            Some(Fault::Late) => {
                self.late.push((node, ask.clone()));
                Told::Nothing
            }
            Some(Fault::Doubled) => {
                let _ = self.server.call(node, ask);
                self.server.call(node, ask)
            }
        }
    }

    /// Runs all that has begun to its end, without faults. Returns the nodes that were found closed.
    pub(crate) fn finish(&mut self) -> Vec<usize> {
        while !self.late.is_empty() {
            self.act(&Action::Late(0));
        }
        let mut closed = Vec::new();
        for replica in 0..self.replicas.len() {
            while !self.replicas[replica].jobs.is_empty() {
                closed.extend(self.step(replica, 0, None));
            }
        }
        closed
    }
}

impl Replica {
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl Job {
    /// The call that is to be made now.
    fn asks(&self) -> Option<Ask> {
        match (&self.booking, &self.attempt) {
            (Some(booking), _) => booking.ask().ok().cloned(),
            (None, Some(attempt)) => match attempt.step() {
                Step::Ask(ask) => Some(ask.clone()),
                _ => None,
            },
            (None, None) => None,
        }
    }

    /// Goes on if no call is needed. Returns true if the job is over.
    fn go_on(&mut self, replica: &Replica) -> bool {
        let Some(attempt) = &mut self.attempt else {
            return self.booking.as_ref().is_none_or(|booking| booking.ask().is_err());
        };
        match (&self.booking, attempt.step().clone()) {
            (Some(booking), _) => {
                if let Err(results) = booking.ask() {
                    // The booking ends in a step of its own, so that a closed node is seen from outside.
                    let result = results[0].clone();
                    attempt.booked(result);
                    self.booking = None;
                }
                matches!(attempt.step(), Step::Failed(_))
            }
            (None, Step::Book(entry)) => {
                let known = replica.known.iter().filter(|(node, _)| *node == self.node);
                let known = known.map(|(_, entry)| entry.clone()).collect();
                let booking = Booking::new(&server::node_name(self.node), vec![entry], known);
                self.booking = Some(booking.with_suspects(replica.dead.clone(), false));
                false
            }
            (None, Step::Choose(_)) => {
                attempt.give_up();
                true
            }
            (None, Step::Bound(_) | Step::Failed(_)) => true,
            (None, Step::Ask(_)) => false,
        }
    }
}
