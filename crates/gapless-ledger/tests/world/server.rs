//! The API server of the model, like the real one: versions, preconditions, bindings that are made once. And the
//! judge, which only uses the claims that bound pods got at their binding.

use gapless_ledger::promise::mutants::{self, Mutant};
use gapless_ledger::promise::{Amount, Ask, Claim, Entry, Node, Pod, Told};

/// Bytes of each GPU: more than a thousand, so that thousandths differ from bytes.
pub(crate) const CAPACITY: u64 = 80_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeObject {
    version: u32,
    uid: u32,
    /// GPUs that it ever had.
    pub(crate) all: usize,
    /// GPUs that it has.
    pub(crate) gpus: Vec<usize>,
    pub(crate) knows_memory: bool,
    /// The page, and the node that it was written for.
    page: Option<(u32, Vec<Entry>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodObject {
    pub(crate) exists: bool,
    version: u32,
    pub(crate) node: Option<usize>,
    /// Its annotations.
    claim: Option<Claim>,
    /// The claim that it got at its binding, which no action can edit.
    promised: Option<Claim>,
    pub(crate) wants: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) era: u32,
    clock: u32,
    pub(crate) nodes: Vec<NodeObject>,
    pub(crate) pods: Vec<PodObject>,
}

pub(crate) fn uid(pod: usize) -> String {
    format!("u{pod}")
}

pub(crate) fn name(pod: usize) -> String {
    format!("d/{pod}")
}

pub(crate) fn node_name(node: usize) -> String {
    format!("n{node}")
}

/// A mutant takes the digit at the end for its index.
pub(crate) fn gpu(node: usize, gpu: usize) -> String {
    format!("G{node}-{gpu}")
}

fn pod_number(name: &str) -> usize {
    name[2..].parse().expect("a name of this model")
}

impl Server {
    /// Nodes with these numbers of GPUs, and pods that want these bytes.
    pub(crate) fn new(nodes: &[usize], pods: &[u64]) -> Server {
        let node = |&all: &usize| NodeObject {
            version: 0,
            uid: 0,
            all,
            gpus: (0..all).collect(),
            knows_memory: true,
            page: None,
        };
        let pod = |&wants: &u64| PodObject {
            exists: true,
            version: 0,
            node: None,
            claim: None,
            promised: None,
            wants,
        };
        let mut server = Server {
            era: 0,
            clock: 1,
            nodes: nodes.iter().map(node).collect(),
            pods: pods.iter().map(pod).collect(),
        };
        // Each object gets its own version.
        (0..nodes.len()).for_each(|node| server.change(node, |_| {}));
        (0..pods.len()).for_each(|pod| server.touch(pod));
        server
    }

    /// The amount that a pod asks for on a node, in bytes if the node's memory is known.
    pub(crate) fn amount(&self, pod: usize, node: usize) -> Amount {
        let bytes = self.pods[pod].wants;
        if self.nodes[node].knows_memory {
            Amount::Bytes(bytes)
        } else {
            Amount::Milli((bytes * 1000 / CAPACITY) as u32)
        }
    }

    pub(crate) fn entries(&self, node: usize) -> &[Entry] {
        self.nodes[node].page.as_ref().map(|(_, entries)| entries.as_slice()).unwrap_or_default()
    }

    pub(crate) fn change(&mut self, node: usize, change: impl FnOnce(&mut NodeObject)) {
        self.clock += 1;
        self.nodes[node].version = self.clock;
        change(&mut self.nodes[node]);
    }

    pub(crate) fn touch(&mut self, pod: usize) {
        self.clock += 1;
        self.pods[pod].version = self.clock;
    }

    pub(crate) fn edit_claim(&mut self, pod: usize) {
        if let Some(claim) = &mut self.pods[pod].claim {
            claim.amount = Amount::Bytes(1);
        }
        self.touch(pod);
    }

    /// The node object is deleted and made again: its annotations are lost, its pods stay.
    pub(crate) fn make_anew(&mut self, node: usize) {
        self.change(node, |node| {
            node.uid += 1;
            node.page = None;
        });
    }

    fn read(&self, pod: usize) -> Option<Pod> {
        let object = self.pods.get(pod).filter(|object| object.exists)?;
        Some(Pod {
            uid: uid(pod),
            name: name(pod),
            version: object.version.to_string(),
            node: object.node.map(node_name).unwrap_or_default(),
            is_finished: false,
            is_ours: true,
            claim: object.claim.clone(),
        })
    }

    pub(crate) fn call(&mut self, node: usize, ask: &Ask) -> Told {
        match ask {
            Ask::Node => {
                let object = &self.nodes[node];
                let page = object.page.as_ref();
                Told::Node(Node {
                    version: object.version.to_string(),
                    gpus: object.gpus.iter().map(|&at| gpu(node, at)).collect(),
                    capacity: object.knows_memory.then_some(CAPACITY),
                    is_founded: page.is_some_and(|(of, _)| *of == object.uid),
                    entries: page.map(|(_, entries)| entries.clone()).unwrap_or_default(),
                })
            }
            Ask::Pod(name) => Told::Pod(self.read(pod_number(name))),
            Ask::BoundPods => {
                let bound = (0..self.pods.len()).filter(|&pod| self.pods[pod].node == Some(node));
                Told::BoundPods(bound.filter_map(|pod| self.read(pod)).collect())
            }
            Ask::Write(version, entries) => {
                if self.nodes[node].version.to_string() != *version {
                    return Told::Conflict;
                }
                let mut entries = entries.clone();
                entries.sort_by(|one, other| one.uid.cmp(&other.uid));
                self.change(node, |node| node.page = Some((node.uid, entries)));
                Told::Done
            }
            Ask::Touch { name, uid, version } => {
                let at = pod_number(name);
                match self.read(at) {
                    Some(pod) if pod.uid == *uid && pod.version == *version => {
                        self.touch(at);
                        Told::Pod(self.read(at))
                    }
                    _ => Told::Conflict,
                }
            }
            Ask::Bind(entry) => {
                let at = pod_number(&entry.pod);
                let is_any = mutants::is(Mutant::BindAnyVersion);
                match self.read(at) {
                    Some(pod) if pod.node.is_empty() && (is_any || pod.version == entry.seen) => {
                        self.touch(at);
                        let pod = &mut self.pods[at];
                        pod.node = Some(node);
                        (pod.claim, pod.promised) = (Some(entry.claim()), Some(entry.claim()));
                        Told::Done
                    }
                    _ => Told::Conflict,
                }
            }
        }
    }

    /// The bytes of a GPU that are promised, by the claims of bound pods.
    pub(crate) fn promised(&self, node: usize, name: &str) -> u64 {
        let bound = self.pods.iter().filter(|pod| pod.exists && pod.node == Some(node));
        let bytes = |pod: &PodObject| {
            let claim = pod.promised.as_ref().filter(|claim| claim.gpus.iter().any(|gpu| gpu == name))?;
            Some(match claim.amount {
                Amount::Bytes(bytes) => bytes,
                Amount::Milli(milli) => CAPACITY * u64::from(milli) / 1000,
            })
        };
        bound.filter_map(bytes).sum()
    }

    /// A GPU of which more is promised than it has.
    pub(crate) fn judge(&self) -> Option<String> {
        let places =
            (0..self.nodes.len()).flat_map(|node| (0..self.nodes[node].all).map(move |at| (node, at)));
        places.map(|(node, at)| (node, gpu(node, at))).find_map(|(node, name)| {
            let promised = self.promised(node, &name);
            (promised > CAPACITY).then(|| format!("{promised} of {CAPACITY} bytes of {name} are promised"))
        })
    }
}
