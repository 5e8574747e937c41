//! The rules against random programs: processes that join, ask, give back and die, with the promises checked after
//! every step; and against a naive twin that only knows the bytes granted to each.

use gapless_ledger::{Answer, Book, Entry, JoinError, Who};
use std::collections::HashMap;

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn who(pid: u32) -> Who {
    Who { pid, start: 1, space: 0 }
}

fn entry(pid: u32, name: &str, limit: u64, borrow: bool) -> Entry {
    Entry { who: who(pid), name: name.into(), limit, borrow, held: 0, wants: 0, outside: 0 }
}

fn book(capacity: u64) -> Book {
    Book { capacity, entries: Vec::new() }
}

#[test]
fn shares_add_up_to_the_card_and_no_further() {
    let mut book = book(100);
    book.join(entry(1, "a", 60, false)).expect("60 of 100");
    book.join(entry(2, "b", 40, true)).expect("the rest");
    book.join(entry(3, "a", 60, false)).expect("another process of a");
    let error = book.join(entry(4, "c", 1, false)).expect_err("one too many");
    assert!(
        matches!(&error, JoinError::Oversold { others, .. } if *others == [("a".into(), 60), ("b".into(), 40)])
    );
    let text = JoinError::Oversold {
        name: "c".into(),
        limit: 1 << 30,
        capacity: 100 << 30,
        others: vec![("a".into(), 60 << 30), ("b".into(), 40 << 30)],
    }
    .to_string();
    assert!(text.contains("a has 61440 MiB, b has 40960 MiB"), "{text}");
    let differs = book.join(entry(4, "a", 50, false)).expect_err("another share");
    assert!(differs.to_string().contains("in process 1"), "{differs}");
    assert_eq!(book.drop_dead(|who| who.pid != 2), 0);
    book.join(entry(4, "c", 40, false)).expect("what b had");
}

#[test]
fn a_share_is_hard_without_borrowing_and_counts_all_processes_of_the_tenant() {
    let mut book = book(100);
    book.join(entry(1, "a", 60, false)).expect("a share");
    book.join(entry(2, "a", 60, false)).expect("the same share");
    assert_eq!(book.ask(who(1), 40), Answer::Granted);
    assert_eq!(book.ask(who(2), 21), Answer::Refused);
    assert_eq!(book.ask(who(2), 20), Answer::Granted);
    assert_eq!(book.ask(who(9), 1), Answer::Refused, "nobody's");
    assert_eq!(book.drop_dead(|who| who.pid != 1), 40);
    assert_eq!(book.ask(who(2), 40), Answer::Granted, "a killed process's share came back");
}

#[test]
fn what_was_lent_is_asked_back_and_nobody_borrows_meanwhile() {
    let mut book = book(100);
    book.join(entry(1, "a", 60, false)).expect("a share");
    book.join(entry(2, "b", 30, true)).expect("a share");
    assert_eq!(book.ask(who(2), 70), Answer::Granted, "30 of its own, 40 borrowed");
    assert_eq!(book.ask(who(1), 30), Answer::Granted);
    assert_eq!(book.overdue(who(2)), 0, "nobody waits");
    assert_eq!(book.ask(who(1), 20), Answer::Wait);
    assert_eq!(book.overdue(who(2)), 40);
    assert_eq!(book.ask(who(2), 1), Answer::Refused, "somebody waits for its own");
    let mut given = book.iter().find(|e| e.who == who(2)).expect("b").clone();
    given.held -= 25;
    assert!(book.put(given));
    assert_eq!(book.ask(who(1), 20), Answer::Granted);
    assert_eq!(book.overdue(who(2)), 0, "who has what it waited for waits no longer");
    assert_eq!(book.ask(who(2), 5), Answer::Granted, "what is left may be borrowed again");
    // A process that is killed while it waits no longer makes others give back.
    assert_eq!(book.ask(who(1), 10), Answer::Wait);
    book.drop_dead(|who| who.pid != 1);
    assert_eq!((book.overdue(who(2)), book.ask(who(2), 30)), (0, Answer::Granted));
}

#[test]
fn random_programs_never_hold_more_than_was_promised() {
    for seed in 1..400 {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let capacity = 50 + numbers.below(200);
        let tenants: Vec<(String, u64, bool)> = (0..1 + numbers.below(4))
            .map(|n| (format!("t{n}"), 1 + numbers.below(capacity), numbers.below(2) == 0))
            .collect();
        let mut book = book(capacity);
        // The twin: the bytes granted to each process.
        let mut granted: HashMap<u32, (usize, u64)> = HashMap::new();
        let mut next_pid = 0;
        for _ in 0..300 {
            let living: Vec<u32> = {
                let mut pids: Vec<u32> = granted.keys().copied().collect();
                pids.sort_unstable();
                pids
            };
            let mut one = || living.get(numbers.below(living.len().max(1) as u64) as usize).copied();
            match (one(), numbers.below(8)) {
                (_, 0 | 1) | (None, _) => {
                    let at = numbers.below(tenants.len() as u64) as usize;
                    let (name, limit, borrow) = &tenants[at];
                    next_pid += 1;
                    let sold: u64 = (0..tenants.len())
                        .filter(|&t| t != at && granted.values().any(|(of, _)| *of == t))
                        .map(|t| tenants[t].1)
                        .sum();
                    let joined = book.join(entry(next_pid, name, *limit, *borrow));
                    assert_eq!(joined.is_ok(), sold + limit <= capacity, "seed {seed}");
                    if joined.is_ok() {
                        granted.insert(next_pid, (at, 0));
                    }
                }
                (Some(pid), 2) => {
                    granted.remove(&pid);
                    book.drop_dead(|who| who.pid != pid);
                }
                (Some(pid), 3 | 4) => {
                    let (_, held) = granted.get_mut(&pid).expect("a living one");
                    let back = numbers.below(*held + 1);
                    *held -= back;
                    let mut own = book.iter().find(|e| e.who == who(pid)).expect("its entry").clone();
                    own.held -= back;
                    assert!(book.put(own));
                }
                (Some(pid), _) => {
                    let bytes = 1 + numbers.below(capacity / 3 + 1);
                    let (of, _) = granted[&pid];
                    let sum: u64 = granted.values().filter(|(o, _)| *o == of).map(|(_, h)| h).sum();
                    let total: u64 = granted.values().map(|(_, h)| h).sum();
                    let (_, limit, borrow) = &tenants[of];
                    let answer = book.ask(who(pid), bytes);
                    match answer {
                        Answer::Granted => granted.get_mut(&pid).expect("a living one").1 += bytes,
                        Answer::Wait => {
                            assert!(sum + bytes <= *limit && total + bytes > capacity, "seed {seed}");
                        }
                        Answer::Refused => assert!(sum + bytes > *limit, "seed {seed}: within its share"),
                    }
                    assert!(answer != Answer::Granted || *borrow || sum + bytes <= *limit, "seed {seed}");
                }
            }
            let total: u64 = granted.values().map(|(_, held)| held).sum();
            assert_eq!(book.total(), total, "seed {seed}");
            assert!(total <= capacity, "seed {seed}");
            for (at, (name, limit, borrow)) in tenants.iter().enumerate() {
                let sum: u64 = granted.values().filter(|(of, _)| *of == at).map(|(_, held)| held).sum();
                assert_eq!(book.held_by(name), sum, "seed {seed}");
                assert!(*borrow || sum <= *limit, "seed {seed}: {name}");
            }
        }
    }
}
