//! The cards of this machine and their processes at one time: the data of `gapless top` and `gapless metrics`.
//!
//! Processes that use Gapless publish their figures (`gapless_stats`). The management library reports all others.
//! [`Machine::of`] combines both and is pure; [`collect`] reads them.

pub(crate) mod collect;

use gapless_cuda::Uuid;
use gapless_cuda::nvml::Memory;
use gapless_stats::{Card as CardStatistics, HostStatistics, Statistics, Tenant};

/// A statistics file that was not written for this many microseconds counts as silent: its process was stopped, or
/// became another program.
pub(crate) const SILENT: u64 = 5_000_000;

/// The whole machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// Microseconds since the Unix epoch.
    pub(crate) time: u64,
    pub(crate) host: String,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) processes: Vec<Process>,
    /// Processes whose host memory Gapless serves, by pid.
    pub(crate) hosts: Vec<HostStatistics>,
    /// The reason why the driver reports no other processes; `None` if it does.
    pub(crate) no_nvml: Option<String>,
    /// Other parts that could not be read.
    pub(crate) notes: Vec<String>,
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gpu {
    /// As NVIDIA's tools number them; without the driver's word, as its first process does.
    pub(crate) index: u32,
    /// The number of the instance, if the card is divided (MIG) and this is a part of it.
    pub(crate) instance: Option<u32>,
    pub(crate) uuid: Option<String>,
    pub(crate) name: String,
    /// True if it has no memory of its own: the figures are the host's.
    pub(crate) unified: bool,
    pub(crate) total: u64,
    /// Bytes in use by all processes and the driver.
    pub(crate) used: u64,
    /// Bytes of processes that use Gapless.
    pub(crate) live: u64,
    pub(crate) reserved: u64,
    /// Bytes of all other processes, and of CUDA itself.
    pub(crate) others: u64,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) user: String,
    pub(crate) command: String,
    pub(crate) tenant: Option<Tenant>,
    /// Present if the process uses Gapless.
    pub(crate) statistics: Option<About>,
    /// By the position of the card in [`Machine::gpus`].
    pub(crate) uses: Vec<Use>,
}

/// A statistics file's facts on its process.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub(crate) program: String,
    pub(crate) began: u64,
    pub(crate) time: u64,
}

/// One process on one card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Use {
    pub(crate) gpu: usize,
    /// Bytes by the driver's word, which include CUDA's own memory and its code.
    pub(crate) used: Option<u64>,
    /// Figures by the process's own word.
    pub(crate) card: Option<CardStatistics>,
}

/// The management library's facts on a card.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardReading {
    pub(crate) index: u32,
    pub(crate) instance: Option<u32>,
    pub(crate) uuid: Option<String>,
    pub(crate) name: String,
    /// `None`: the library does not report it.
    pub(crate) memory: Option<Memory>,
    /// True if the memory is the host's.
    pub(crate) unified: bool,
    /// Number and bytes of each process.
    pub(crate) processes: Vec<(u32, Option<u64>)>,
}

/// Looks up a process by its number: the name of its user, and its command line.
pub(crate) type Who<'a> = &'a dyn Fn(u32) -> (String, String);

impl Machine {
    /// Combines the readings. `only` keeps one process.
    pub(crate) fn of(
        files: Vec<Statistics>,
        cards: Result<Vec<CardReading>, String>,
        time: u64,
        only: Option<u32>,
        who: Who<'_>,
    ) -> Machine {
        let mut machine = Machine { time, ..Machine::default() };
        let cards = match cards {
            Ok(cards) => cards,
            Err(reason) => {
                machine.no_nvml = Some(reason);
                Vec::new()
            }
        };
        for card in &cards {
            let memory = card.memory.unwrap_or_default();
            machine.gpus.push(Gpu {
                index: card.index,
                instance: card.instance,
                uuid: card.uuid.clone(),
                name: card.name.clone(),
                unified: card.unified,
                total: memory.total,
                used: memory.used,
                ..Gpu::default()
            });
        }
        // If the driver does not report a card's use, its processes' figures are summed.
        let told: Vec<bool> = cards.iter().map(|card| card.memory.is_some()).collect();
        for statistics in files {
            machine.add_statistics(statistics, &told, who);
        }
        for (gpu, card) in cards.iter().enumerate() {
            for &(pid, used) in &card.processes {
                machine.add_user(gpu, pid, used, who);
            }
        }
        machine.note(&told);
        machine.settle();
        machine.processes.retain(|process| only.is_none_or(|pid| process.pid == pid));
        machine
    }

    /// Adds notes on figures that can mislead.
    fn note(&mut self, told: &[bool]) {
        for (at, gpu) in self.gpus.iter().enumerate() {
            let number = gpu.number();
            if gpu.unified {
                self.notes.push(format!("GPU {number} has no memory of its own: its figures are the host's"));
            } else if told.get(at) == Some(&false) && gpu.total == 0 {
                self.notes.push(format!("GPU {number}: the driver does not tell how full it is"));
            }
        }
        // A server's clients cannot be identified from outside.
        let servers = self.processes.iter().filter(|process| process.is_mps_server());
        let notes = servers.map(|server| {
            let pid = server.pid;
            format!("process {pid} is an MPS server: its clients' memory may be listed there a second time")
        });
        self.notes.extend(notes.collect::<Vec<_>>());
    }

    fn add_statistics(&mut self, statistics: Statistics, told: &[bool], who: Who<'_>) {
        let Statistics { process, tenant, time, cards } = statistics;
        let uses = cards
            .into_iter()
            .map(|card| {
                let gpu = self.gpu_of(&card, told);
                Use { gpu, used: None, card: Some(card) }
            })
            .collect();
        let (user, command) = who(process.pid);
        self.processes.push(Process {
            pid: process.pid,
            user,
            command: if process.command.is_empty() { command } else { process.command },
            tenant,
            statistics: Some(About { program: process.program, began: process.began, time }),
            uses,
        });
    }

    /// The card of a process's statistics. A card that the driver does not list is added.
    fn gpu_of(&mut self, card: &CardStatistics, told: &[bool]) -> usize {
        let uuid = card.uuid.map(|bytes| Uuid(bytes).to_string());
        // An instance of a card has a UUID of the same shape, with another word before it.
        let same = |gpu: &Gpu| match (&gpu.uuid, &uuid) {
            (Some(one), Some(other)) => Uuid::parse(one).is_some() && Uuid::parse(one) == Uuid::parse(other),
            (None, None) => gpu.index == card.index,
            _ => false,
        };
        let at = self.gpus.iter().position(same).unwrap_or_else(|| {
            self.gpus.push(Gpu { index: card.index, uuid, name: card.name.clone(), ..Gpu::default() });
            self.gpus.len() - 1
        });
        if told.get(at) != Some(&true) {
            let gpu = &mut self.gpus[at];
            gpu.total = gpu.total.max(card.total);
            gpu.used = gpu.used.max(card.total.saturating_sub(card.free));
        }
        at
    }

    fn add_user(&mut self, gpu: usize, pid: u32, used: Option<u64>, who: Who<'_>) {
        let at = self.processes.iter().position(|process| process.pid == pid).unwrap_or_else(|| {
            let (user, command) = who(pid);
            self.processes.push(Process { pid, user, command, ..Process::default() });
            self.processes.len() - 1
        });
        let uses = &mut self.processes[at].uses;
        match uses.iter_mut().find(|one| one.gpu == gpu) {
            Some(one) => one.used = used,
            None => uses.push(Use { gpu, used, card: None }),
        }
    }

    /// Sums the processes of each card.
    fn settle(&mut self) {
        for process in &self.processes {
            for one in &process.uses {
                if let (Some(card), Some(gpu)) = (&one.card, self.gpus.get_mut(one.gpu)) {
                    gpu.live = gpu.live.saturating_add(card.live);
                    gpu.reserved = gpu.reserved.saturating_add(card.reserved);
                }
            }
        }
        for gpu in &mut self.gpus {
            gpu.others = gpu.used.saturating_sub(gpu.reserved);
        }
        // Processes that use Gapless come first, then those with the most memory.
        self.processes.sort_by_key(|process| {
            (process.statistics.is_none(), std::cmp::Reverse(process.reserved()), process.pid)
        });
    }

    /// Processes that use Gapless.
    pub(crate) fn ours(&self) -> usize {
        self.processes.iter().filter(|process| process.statistics.is_some()).count()
    }
}

impl Gpu {
    /// The card's number; of an instance, its own behind that: `0/2`.
    pub(crate) fn number(&self) -> String {
        self.instance.map_or_else(|| self.index.to_string(), |instance| format!("{}/{instance}", self.index))
    }
}

impl Process {
    /// True if this is the server of NVIDIA's Multi-Process Service.
    fn is_mps_server(&self) -> bool {
        let program = self.command.split_whitespace().next().unwrap_or_default();
        program.rsplit('/').next() == Some("nvidia-cuda-mps-server")
    }

    fn sum(&self, of: impl Fn(&CardStatistics) -> u64) -> u64 {
        self.cards().map(of).fold(0, u64::saturating_add)
    }

    pub(crate) fn cards(&self) -> impl Iterator<Item = &CardStatistics> {
        self.uses.iter().filter_map(|one| one.card.as_ref())
    }

    /// The tenant's limit, else that of its cards together.
    pub(crate) fn limit(&self) -> Option<u64> {
        let tenant = self.tenant.as_ref().and_then(|tenant| tenant.limit);
        tenant.or_else(|| self.cards().filter_map(|card| card.limit).reduce(u64::saturating_add))
    }

    pub(crate) fn live(&self) -> u64 {
        self.sum(|card| card.live)
    }

    /// Device memory that the process holds: by its own word, else by the driver's.
    pub(crate) fn reserved(&self) -> u64 {
        let of = |one: &Use| one.card.as_ref().map_or(one.used.unwrap_or(0), |card| card.reserved);
        self.uses.iter().map(of).fold(0, u64::saturating_add)
    }

    /// 1 - peak allocated / peak reserved, over all its cards.
    pub(crate) fn fragmentation(&self) -> f64 {
        let (live, reserved) = (self.sum(|card| card.peak_live), self.sum(|card| card.peak_reserved));
        if reserved == 0 { 0.0 } else { 1.0 - live.min(reserved) as f64 / reserved as f64 }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.cards().map(CardStatistics::allocations_per_second).sum()
    }

    /// The time since its statistics file was written, if that is long.
    pub(crate) fn silent(&self, now: u64) -> Option<u64> {
        let since = now.saturating_sub(self.statistics.as_ref()?.time);
        (since > SILENT).then_some(since)
    }

    /// Live and reserved over the last minutes, oldest first, over all its cards.
    pub(crate) fn history(&self) -> Vec<(u64, u64)> {
        let length = self.cards().map(|card| card.samples.len()).max().unwrap_or(0);
        let mut sums = vec![(0u64, 0u64); length];
        for card in self.cards() {
            // Cards that joined later have fewer samples.
            let first = length - card.samples.len();
            for (sum, sample) in sums[first..].iter_mut().zip(&card.samples) {
                *sum = (sum.0.saturating_add(sample.live), sum.1.saturating_add(sample.reserved));
            }
        }
        sums
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::testing::{GIB, card, machine, reading, statistics};
    use super::*;

    fn nobody(_: u32) -> (String, String) {
        ("user".to_owned(), "other".to_owned())
    }

    #[test]
    fn a_card_is_one_card_whoever_tells_of_it() {
        let machine = machine();
        assert_eq!(machine.gpus.len(), 2);
        let first = &machine.gpus[0];
        assert_eq!((first.live, first.reserved), (31 * GIB, 36 * GIB));
        assert_eq!((first.used, first.others), (60 * GIB, 24 * GIB));
        assert_eq!(machine.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [4242, 977, 31_337]);
        let trainer = &machine.processes[0];
        assert_eq!(trainer.uses.iter().map(|one| one.used).collect::<Vec<_>>(), [Some(33 * GIB), None]);
        assert!(machine.processes[2].statistics.is_none());
        assert_eq!(machine.processes[2].reserved(), 20 * GIB);
    }

    #[test]
    fn without_the_drivers_word_the_processes_tell_of_their_cards() {
        let files = vec![statistics(7, vec![card(1, GIB, 2 * GIB)])];
        let machine = Machine::of(files, Err("no driver".to_owned()), 0, None, &nobody);
        assert_eq!(machine.no_nvml.as_deref(), Some("no driver"));
        assert_eq!(machine.gpus.len(), 1);
        assert_eq!(
            (machine.gpus[0].index, machine.gpus[0].total, machine.gpus[0].used),
            (1, 80 * GIB, 50 * GIB)
        );
        assert_eq!(machine.gpus[0].others, 48 * GIB);
    }

    #[test]
    fn numbers_that_cannot_be_do_not_overflow() {
        let mut wild = card(0, u64::MAX, u64::MAX);
        (wild.peak_live, wild.peak_reserved, wild.free) = (u64::MAX, u64::MAX, u64::MAX);
        let files = vec![statistics(7, vec![wild.clone(), wild.clone()]), statistics(8, vec![wild])];
        let machine = Machine::of(files, Ok(vec![reading(0)]), 0, None, &nobody);
        assert_eq!(machine.processes[0].live(), u64::MAX);
        assert_eq!(machine.gpus[0].reserved, u64::MAX);
        assert!(machine.processes[0].fragmentation() >= 0.0);
        let _ = machine.processes[0].history();
    }

    #[test]
    fn instances_of_a_card_are_told_apart() {
        let of = |instance: u32, uuid: &str, total| CardReading {
            instance: Some(instance),
            uuid: Some(uuid.to_owned()),
            memory: Some(Memory { total, used: 0, free: total }),
            ..reading(0)
        };
        let own = Uuid(super::testing::uuid(2)).to_string().replacen("GPU", "MIG", 1);
        let cards = vec![of(1, "MIG-6a70c0de-0000-4000-8000-000000000001", 5 * GIB), of(2, &own, 10 * GIB)];
        let machine =
            Machine::of(vec![statistics(7, vec![card(2, GIB, 2 * GIB)])], Ok(cards), 0, None, &nobody);
        assert_eq!(machine.gpus.iter().map(Gpu::number).collect::<Vec<_>>(), ["0/1", "0/2"]);
        assert_eq!(machine.gpus.iter().map(|gpu| gpu.reserved).collect::<Vec<_>>(), [0, 2 * GIB]);
        assert_eq!(machine.gpus[1].total, 10 * GIB, "the driver's word, not the process's");
    }

    #[test]
    fn figures_that_are_not_the_cards_own_have_a_note() {
        let host = Memory { total: 128 * GIB, used: 28 * GIB, free: 100 * GIB };
        let cards = vec![
            CardReading { memory: Some(host), unified: true, ..reading(0) },
            CardReading { memory: None, ..reading(1) },
            CardReading { memory: None, ..reading(2) },
        ];
        let machine =
            Machine::of(vec![statistics(7, vec![card(2, GIB, 2 * GIB)])], Ok(cards), 0, None, &nobody);
        assert_eq!((machine.gpus[0].total, machine.gpus[0].used), (128 * GIB, 28 * GIB));
        assert_eq!((machine.gpus[2].total, machine.gpus[2].used), (80 * GIB, 50 * GIB), "the process tells");
        assert_eq!(
            machine.notes,
            [
                "GPU 0 has no memory of its own: its figures are the host's",
                "GPU 1: the driver does not tell how full it is"
            ]
        );
    }

    #[test]
    fn an_mps_server_may_hold_what_its_clients_hold() {
        let server = |_: u32| ("root".to_owned(), "/usr/bin/nvidia-cuda-mps-server -f".to_owned());
        let cards = vec![CardReading { processes: vec![(30, Some(GIB))], ..reading(0) }];
        let machine = Machine::of(Vec::new(), Ok(cards.clone()), 0, None, &server);
        assert_eq!(machine.notes.len(), 1);
        assert!(machine.notes[0].contains("process 30 is an MPS server"), "{}", machine.notes[0]);
        assert!(Machine::of(Vec::new(), Ok(cards), 0, None, &nobody).notes.is_empty());
    }

    #[test]
    fn one_process_can_be_asked_for() {
        let files = vec![statistics(7, vec![card(0, 1, 2)]), statistics(8, vec![card(0, 1, 2)])];
        let machine = Machine::of(files, Ok(vec![reading(0)]), 0, Some(8), &nobody);
        assert_eq!(machine.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [8]);
        assert_eq!(machine.gpus[0].reserved, 4, "the card is everybody's");
    }
}
