//! Promised memory of this node's pods against the memory in use. Pure: all inputs are arguments.
//!
//! A process belongs to a pod if its cgroup carries the pod's id, or if it is the pod's tenant and in no pod's cgroup:
//! programs say by themselves which tenant they are, and one pod must not put its use on another. A tenant without a
//! pod (Slurm, Ray, a shell) is promised its share. All other processes are unbooked.

use crate::machine::{Gpu, Machine, Process, Use};
use std::collections::BTreeMap;

/// The part of the path of all cgroups of pods.
const PODS: &str = "kubepods";

/// A promise to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Booking {
    /// The pod's unique id.
    pub(super) id: String,
    /// As people know it: `namespace/name`.
    pub(super) name: String,
    /// GPUs by their UUIDs; if there are none, by their numbers.
    pub(super) uuids: Vec<String>,
    pub(super) indices: Vec<u32>,
    /// Bytes of each GPU.
    pub(super) bytes: u64,
}

impl Booking {
    /// The tenant of the pod's processes.
    pub(super) fn tenant(&self) -> String {
        gapless_kube::tenant::of_pod(&self.id)
    }

    fn is_on(&self, gpu: &Gpu) -> bool {
        if self.uuids.is_empty() {
            return self.indices.contains(&gpu.index);
        }
        gpu.uuid.as_ref().is_some_and(|uuid| self.uuids.contains(uuid))
    }

    /// True if a cgroup is the pod's or lies in it. systemd writes the id's dashes as underscores.
    pub(super) fn owns(&self, cgroup: &str) -> bool {
        self.id.len() >= 8 && (cgroup.contains(&self.id) || cgroup.contains(&self.id.replace('-', "_")))
    }
}

/// One holder on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) booked: u64,
    pub(super) used: u64,
    pub(super) pids: Vec<u32>,
}

impl Held {
    /// Bytes in use beyond the promise.
    pub(super) fn over(&self) -> u64 {
        self.used.saturating_sub(self.booked)
    }
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfGpu {
    pub(super) held: Vec<Held>,
    /// Bytes that processes without a promise use, and their numbers.
    pub(super) unbooked: u64,
    pub(super) strangers: Vec<u32>,
}

impl OfGpu {
    pub(super) fn booked(&self) -> u64 {
        self.held.iter().fold(0, |sum, held| sum.saturating_add(held.booked))
    }
}

/// All GPUs, in the order of the machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) gpus: Vec<OfGpu>,
    /// Names of pods whose GPU is not on this machine.
    pub(super) lost: Vec<String>,
}

impl Account {
    /// `cgroup` gives the cgroup of a process, if it can be read.
    pub(super) fn of(
        machine: &Machine,
        bookings: &[Booking],
        cgroup: &dyn Fn(u32) -> Option<String>,
    ) -> Account {
        let cgroups: BTreeMap<u32, String> = machine
            .processes
            .iter()
            .filter_map(|process| Some((process.pid, cgroup(process.pid)?)))
            .collect();
        let booking_of = |process: &Process| {
            let cgroup = cgroups.get(&process.pid);
            let is_home = |booking: &&Booking| cgroup.is_some_and(|path| booking.owns(path));
            let is_tenant = |booking: &&Booking| {
                !cgroup.is_some_and(|path| path.contains(PODS))
                    && process.tenant.as_ref().is_some_and(|tenant| tenant.name == booking.tenant())
            };
            bookings.iter().find(is_home).or_else(|| bookings.iter().find(is_tenant))
        };
        let mut account = Account::default();
        for (at, gpu) in machine.gpus.iter().enumerate() {
            let mut of = OfGpu::default();
            for booking in bookings.iter().filter(|booking| booking.is_on(gpu)) {
                of.held.push(Held {
                    id: booking.id.clone(),
                    name: booking.name.clone(),
                    booked: booking.bytes,
                    used: 0,
                    pids: Vec::new(),
                });
            }
            for process in &machine.processes {
                let Some(used) = process.uses.iter().find(|one| one.gpu == at).map(bytes) else { continue };
                let booking = booking_of(process);
                let share = process.tenant.as_ref().and_then(|tenant| Some((tenant, tenant.limit?)));
                let held = match (booking, share) {
                    // A pod on a GPU that was not promised to it has a promise of 0 there.
                    (Some(booking), _) => of.holder(&booking.id, &booking.name, 0),
                    (None, Some((tenant, limit))) => {
                        let name = format!("tenant {}", tenant.name);
                        of.holder(&tenant.name, &name, limit)
                    }
                    (None, None) => {
                        of.unbooked = of.unbooked.saturating_add(used);
                        of.strangers.push(process.pid);
                        continue;
                    }
                };
                held.used = held.used.saturating_add(used);
                held.pids.push(process.pid);
            }
            account.gpus.push(of);
        }
        let is_lost = |booking: &&Booking| !machine.gpus.iter().any(|gpu| booking.is_on(gpu));
        account.lost = bookings.iter().filter(is_lost).map(|booking| booking.name.clone()).collect();
        account
    }

    /// Holders that use more than was promised, with the position of the GPU.
    pub(super) fn over(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.gpus
            .iter()
            .enumerate()
            .flat_map(|(at, gpu)| gpu.held.iter().map(move |held| (at, held)))
            .filter(|(_, held)| held.over() > 0)
    }
}

impl OfGpu {
    fn holder(&mut self, id: &str, name: &str, booked: u64) -> &mut Held {
        let at = self.held.iter().position(|held| held.id == id).unwrap_or_else(|| {
            let (id, name) = (id.to_owned(), name.to_owned());
            self.held.push(Held { id, name, booked, used: 0, pids: Vec::new() });
            self.held.len() - 1
        });
        &mut self.held[at]
    }
}

/// Bytes that a process uses of a GPU: by the driver's word, else by its own.
fn bytes(one: &Use) -> u64 {
    one.used.or_else(|| one.card.as_ref().map(|card| card.reserved)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::{GIB, machine};
    use gapless_stats::Tenant;

    const ID: &str = "0c1d2e3f-0000-4000-8000-00000000beef";

    fn booking(gib: u64) -> Booking {
        Booking {
            id: ID.to_owned(),
            name: "default/notebook".to_owned(),
            indices: vec![0],
            bytes: gib * GIB,
            ..Booking::default()
        }
    }

    /// Process 31337 of the test's machine is in the pod, as systemd writes it.
    fn cgroup(pid: u32) -> Option<String> {
        let pod = ID.replace('-', "_");
        (pid == 31_337).then(|| format!("/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-abc.scope"))
    }

    #[test]
    fn use_is_told_beside_the_promise_and_over_use_is_marked() {
        let account = Account::of(&machine(), &[booking(18)], &cgroup);
        let first = &account.gpus[0];
        let pod = &first.held[0];
        assert_eq!((pod.used, pod.over(), pod.pids.as_slice()), (20 * GIB, 2 * GIB, &[31_337][..]));
        let tenant = &first.held[1];
        assert_eq!((tenant.name.as_str(), tenant.booked, tenant.over()), ("tenant team-search", 10 * GIB, 0));
        assert_eq!(
            (first.booked(), first.unbooked, first.strangers.as_slice()),
            (28 * GIB, 33 * GIB, &[4242][..])
        );
        assert_eq!(
            account.over().map(|(gpu, held)| (gpu, held.name.as_str())).collect::<Vec<_>>(),
            [(0, "default/notebook")]
        );
        assert!(
            Account::of(&machine(), &[booking(20)], &cgroup).over().next().is_none(),
            "all of it is no over-use"
        );
    }

    #[test]
    fn a_pod_on_a_gpu_that_is_not_its_own_has_nothing_there() {
        let elsewhere = Booking { indices: vec![1], ..booking(40) };
        let account = Account::of(&machine(), std::slice::from_ref(&elsewhere), &cgroup);
        assert_eq!(account.gpus[1].held[0].used, 0);
        let over: Vec<u64> = account.over().map(|(_, held)| held.over()).collect();
        assert_eq!(over, [20 * GIB]);
        let gone = Booking { uuids: vec!["GPU-gone".to_owned()], ..elsewhere };
        assert_eq!(Account::of(&machine(), &[gone], &cgroup).lost, ["default/notebook"]);
    }

    /// Process 31337 says that it is the tenant of a pod. Its cgroup says where it is, if that is known.
    #[test]
    fn a_pod_puts_its_use_on_no_other() {
        let own = Booking { id: "11111111-0000-4000-8000-00000000cafe".to_owned(), ..booking(30) };
        let mut machine = machine();
        for process in machine.processes.iter_mut().filter(|process| process.pid == 31_337) {
            process.tenant = Some(Tenant { name: booking(1).tenant(), limit: Some(80 * GIB) });
        }
        let of = |path: Option<String>| {
            let cgroup = |pid: u32| (pid == 31_337).then(|| path.clone()).flatten();
            // The other pod comes first, as it may in a list.
            let account = Account::of(&machine, &[booking(18), own.clone()], &cgroup);
            let used = |id: &str| {
                account.gpus[0].held.iter().filter(|held| held.id == id).map(|held| held.used).sum::<u64>()
            };
            (used(ID) / GIB, used(&own.id) / GIB)
        };
        let pod =
            |id: &str| Some(format!("/kubepods.slice/kubepods-pod{}.slice/x.scope", id.replace('-', "_")));
        assert_eq!(of(pod(&own.id)), (0, 20));
        assert_eq!(of(pod("22222222-0000-4000-8000-00000000cafe")), (0, 0), "a pod without a booking");
        assert_eq!(of(pod(ID)), (20, 0));
        for outside in [None, Some("/user.slice/x".to_owned())] {
            assert_eq!(of(outside), (20, 0), "a container that is no pod's");
        }
    }

    #[test]
    fn short_ids_match_no_cgroup_by_chance() {
        let short = Booking { id: "abc".to_owned(), ..Booking::default() };
        assert!(!short.owns("/kubepods/podabc/x"));
    }
}
