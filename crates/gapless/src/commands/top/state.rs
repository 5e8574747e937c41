//! The user's choices: order, filter, selected process. Only keys change them.

use crate::machine::{Gpu, Machine, Process};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    Pid,
    User,
    Gpu,
    Live,
    #[default]
    Reserved,
    Fragmentation,
    Rate,
    Command,
}

impl Sort {
    const ALL: [Sort; 8] = [
        Sort::Reserved,
        Sort::Live,
        Sort::Fragmentation,
        Sort::Rate,
        Sort::Command,
        Sort::Pid,
        Sort::User,
        Sort::Gpu,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Pid => "pid",
            Sort::User => "user",
            Sort::Gpu => "gpu",
            Sort::Live => "allocated",
            Sort::Reserved => "reserved",
            Sort::Fragmentation => "fragmentation",
            Sort::Rate => "allocations a second",
            Sort::Command => "command",
        }
    }

    fn next(self, back: bool) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + if back { Sort::ALL.len() - 1 } else { 1 }) % Sort::ALL.len()]
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ui {
    pub(crate) sort: Sort,
    /// True if the order is reversed.
    pub(crate) is_reversed: bool,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    /// The chosen process by pid, because rows may move; `None`: the first row.
    pub(crate) chosen: Option<u32>,
    /// The process whose details are shown; `card` is one of its cards.
    pub(crate) inside: Option<u32>,
    pub(crate) card: usize,
    pub(crate) is_helping: bool,
    pub(crate) is_held: bool,
}

impl Ui {
    /// The rows that are shown, in their order.
    pub(crate) fn rows<'a>(&self, machine: &'a Machine) -> Vec<&'a Process> {
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let fits = |process: &&Process| {
            wanted.is_empty()
                || has(&process.command)
                || has(&process.user)
                || has(&process.pid.to_string())
                || process.tenant.as_ref().is_some_and(|tenant| has(&tenant.name))
        };
        let mut rows: Vec<&Process> = machine.processes.iter().filter(fits).collect();
        rows.sort_by(|a, b| {
            // Amounts are in descending order, all else ascending.
            let order = match self.sort {
                Sort::Pid => a.pid.cmp(&b.pid),
                Sort::User => a.user.cmp(&b.user),
                Sort::Gpu => gpus(a, machine).cmp(&gpus(b, machine)),
                Sort::Live => b.live().cmp(&a.live()),
                Sort::Reserved => b.reserved().cmp(&a.reserved()),
                Sort::Fragmentation => b.fragmentation().total_cmp(&a.fragmentation()),
                Sort::Rate => b.rate().total_cmp(&a.rate()),
                Sort::Command => a.command.cmp(&b.command),
            };
            let order = if self.is_reversed { order.reverse() } else { order };
            order.then(a.pid.cmp(&b.pid))
        });
        rows
    }

    /// The chosen row's position.
    pub(crate) fn position(&self, rows: &[&Process]) -> usize {
        self.chosen.and_then(|pid| rows.iter().position(|row| row.pid == pid)).unwrap_or(0)
    }

    /// Takes a key. Returns true if it ends the program.
    pub(crate) fn key(&mut self, key: KeyEvent, machine: &Machine) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if self.is_typing {
            match key.code {
                KeyCode::Esc => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if self.filter.len() < 64 => self.filter.push(c),
                _ => {}
            }
            return false;
        }
        if self.is_helping {
            self.is_helping = false;
            return false;
        }
        match key.code {
            KeyCode::Char('q') if self.inside.is_none() => return true,
            KeyCode::Esc if self.inside.is_none() && self.filter.is_empty() => return true,
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace if self.inside.is_some() => {
                self.inside = None;
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_helping = true,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Char('/') if self.inside.is_none() => self.is_typing = true,
            KeyCode::Char('s') => self.sort = self.sort.next(false),
            KeyCode::Char('S') => self.sort = self.sort.next(true),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            code => self.go(code, machine),
        }
        false
    }

    fn go(&mut self, code: KeyCode, machine: &Machine) {
        if let Some(pid) = self.inside {
            let process = machine.processes.iter().find(|process| process.pid == pid);
            let cards = process.map_or(1, |process| process.uses.len().max(1));
            match code {
                KeyCode::Right | KeyCode::Tab | KeyCode::Char('l') => self.card = (self.card + 1) % cards,
                KeyCode::Left | KeyCode::BackTab => self.card = (self.card + cards - 1) % cards,
                _ => {}
            }
            return;
        }
        let rows = self.rows(machine);
        let last = rows.len().saturating_sub(1);
        let at = self.position(&rows);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => (at + 1).min(last),
            KeyCode::PageUp => at.saturating_sub(10),
            KeyCode::PageDown => (at + 10).min(last),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            KeyCode::Enter => {
                self.inside = rows.get(at).map(|row| row.pid);
                self.card = 0;
                at
            }
            _ => return,
        };
        self.chosen = rows.get(to).map(|row| row.pid);
    }
}

/// The numbers of a process's cards: `0`, `0,2`, `0-7`; with those of instances: `0/1,0/2`.
pub(crate) fn gpus(process: &Process, machine: &Machine) -> String {
    let of: Vec<&Gpu> = process.uses.iter().filter_map(|one| machine.gpus.get(one.gpu)).collect();
    if of.iter().any(|gpu| gpu.instance.is_some()) {
        return of.iter().map(|gpu| gpu.number()).collect::<Vec<_>>().join(",");
    }
    let mut numbers: Vec<u32> = of.iter().map(|gpu| gpu.index).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut parts: Vec<String> = Vec::new();
    let mut rest = numbers.as_slice();
    while let [first, ..] = rest {
        let length = rest.iter().zip(*first..).take_while(|(number, next)| **number == *next).count();
        match rest[..length] {
            [one] => parts.push(one.to_string()),
            [one, other] => parts.push(format!("{one},{other}")),
            _ => parts.push(format!("{first}-{}", rest[length - 1])),
        }
        rest = &rest[length..];
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::{card, machine, statistics};

    fn press(ui: &mut Ui, keys: &str, machine: &Machine) -> bool {
        keys.chars().any(|c| {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '↓' => KeyCode::Down,
                '→' => KeyCode::Right,
                '←' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            ui.key(KeyEvent::new(code, KeyModifiers::NONE), machine)
        })
    }

    fn pids(ui: &Ui, machine: &Machine) -> Vec<u32> {
        ui.rows(machine).iter().map(|row| row.pid).collect()
    }

    #[test]
    fn keys_sort_filter_and_look_inside() {
        let (machine, mut ui) = (machine(), Ui::default());
        assert_eq!(pids(&ui, &machine), [4242, 31_337, 977]);
        press(&mut ui, "r", &machine);
        assert_eq!(pids(&ui, &machine), [977, 31_337, 4242]);
        press(&mut ui, "rsssss", &machine);
        assert_eq!((ui.sort, pids(&ui, &machine)), (Sort::Pid, vec![977, 4242, 31_337]));
        press(&mut ui, "/SEaRcx←\n", &machine);
        assert_eq!(
            (pids(&ui, &machine), ui.is_typing),
            (vec![977], false),
            "a tenant's name, letters of any size"
        );
        assert!(!press(&mut ui, "\x1b", &machine), "first the filter goes");
        assert_eq!(pids(&ui, &machine).len(), 3);
        press(&mut ui, "↓\n", &machine);
        assert_eq!((ui.chosen, ui.inside, ui.card), (Some(4242), Some(4242), 0));
        press(&mut ui, "→", &machine);
        assert_eq!(ui.card, 1);
        press(&mut ui, "→", &machine);
        assert_eq!(ui.card, 0);
        assert!(!press(&mut ui, "q", &machine), "back to the list");
        assert!(press(&mut ui, "q", &machine), "and out");
        assert!(Ui::default().key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &machine));
    }

    #[test]
    fn a_process_that_ended_leaves_the_choice_with_the_first() {
        let (machine, empty) = (machine(), Machine::default());
        let mut ui = Ui::default();
        press(&mut ui, "↓↓", &machine);
        assert_eq!(ui.chosen, Some(977));
        press(&mut ui, "↓\nj→", &empty);
        assert_eq!((ui.chosen, ui.inside, ui.position(&[])), (None, None, 0));
    }

    #[test]
    fn cards_are_listed_short() {
        let who = |_: u32| (String::new(), String::new());
        let of = |numbers: &[u32]| {
            let cards = numbers.iter().map(|&index| card(index, 1, 1)).collect();
            let machine = Machine::of(vec![statistics(1, cards)], Ok(Vec::new()), 0, None, &who);
            gpus(&machine.processes[0], &machine)
        };
        assert_eq!(of(&[0]), "0");
        assert_eq!(of(&[1, 0]), "0,1");
        assert_eq!(of(&[0, 1, 2, 3, 6, 4, 9, 10]), "0-4,6,9,10");
    }
}
