//! The text of a failed request: all its cases as a person reads them, and its greatest length.

use gapless_pool::{Hole, Holes, PoolKey, PrivateFree, StreamHandle};
use gapless_torch::holders::Holder;
use gapless_torch::oom::tail::Tail;
use gapless_torch::oom::text::{COLUMNS, LINES, text};
use gapless_torch::oom::{Facts, Limit, LimitBy};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn holder(what: &str, bytes: u64) -> Holder {
    Holder { what: what.to_owned(), bytes, blocks: 1 }
}

fn hole(size: u64, stream: u64, pool: PoolKey) -> Option<Hole> {
    Some(Hole { size, stream: StreamHandle(stream), pool, is_small: false })
}

/// A card of 80 GiB that is full of this process's own memory.
fn full() -> Facts {
    Facts {
        size: 2 * GIB,
        line: Some("train.py:88 step".to_owned()),
        allocated: 77 * GIB,
        active: 77 * GIB,
        reserved: 78 * GIB + 512 * MIB,
        free: 900 * MIB,
        total: 80 * GIB,
        others: Some(Vec::new()),
        holes: Holes {
            largest: hole(310 * MIB, 0, PoolKey(0, 0)),
            own: 700 * MIB,
            pinned: 500 * MIB,
            ..Holes::default()
        },
        missing: 948 * MIB,
        holders: vec![
            holder("model.py:12 forward", 40 * GIB),
            holder("optim.py:301 step", 20 * GIB),
            holder("24 blocks of 96.0 MiB", 2304 * MIB),
        ],
        tail: Tail::Left("/home/me/run/gapless-oom.4711.1.gtrace".into()),
        ..Facts::default()
    }
}

#[test]
fn nothing_helps() {
    insta::assert_snapshot!(text(&full()));
}

#[test]
fn a_smaller_batch_helps() {
    let tail = Tail::Recording("/home/me/run/run.gtrace".into());
    insta::assert_snapshot!(text(&Facts { batch: Some(87), handlers: 2, tail, ..full() }));
}

#[test]
fn a_budget_refused_it() {
    let refusal = "The budget \"eval\" allows 8192.00 MiB, of which 7900.00 MiB is live.".to_owned();
    let facts =
        Facts { refusal: Some(refusal), free: 30 * GIB, allocated: 40 * GIB, reserved: 41 * GIB, ..full() };
    insta::assert_snapshot!(text(&facts));
}

/// A process that may hold 8 GiB of a card that is nearly empty.
fn capped(by: LimitBy) -> Facts {
    Facts {
        allocated: 7 * GIB,
        active: 7 * GIB,
        reserved: 7 * GIB + 100 * MIB,
        free: 72 * GIB,
        limit: Some(Limit { bytes: 8 * GIB, by }),
        missing: 1100 * MIB,
        ..full()
    }
}

#[test]
fn a_limit_of_the_process() {
    insta::assert_snapshot!("a_limit_by_option", text(&capped(LimitBy::Option)));
    insta::assert_snapshot!("a_limit_by_fraction", text(&capped(LimitBy::Fraction(0.1))));
}

#[test]
fn a_limit_that_is_not_what_stops_it_is_not_to_be_raised() {
    // The device itself has less than the limit leaves.
    let limit = Some(Limit { bytes: 79 * GIB + 900 * MIB, by: LimitBy::Option });
    assert!(!text(&Facts { limit, ..full() }).contains("or more"));
    // The device has too little beyond the limit.
    let limit = Some(Limit { bytes: 78 * GIB + 600 * MIB, by: LimitBy::Fraction(0.98) });
    assert!(!text(&Facts { limit, ..full() }).contains("or more"));
}

#[test]
fn what_is_advised_as_a_limit_is_enough() {
    for missing in [1, 2 * MIB, 1100 * MIB, 40 * GIB, 70 * GIB] {
        let facts = Facts { missing, ..capped(LimitBy::Option) };
        let said = text(&facts);
        let at = said.find("limit=").expect("the device has it") + "limit=".len();
        let mib: u64 = said[at..].split("MiB").next().and_then(|n| n.parse().ok()).expect("a number");
        assert!(mib * MIB >= 8 * GIB + missing && mib * MIB <= 8 * GIB + missing + 2 * MIB);
        let said = text(&Facts { missing, ..capped(LimitBy::Fraction(0.1)) });
        let at =
            said.find("fraction(0.").map(|_| said.rfind("fraction(").expect("twice") + "fraction(".len());
        let fraction: f64 =
            said[at.expect("said")..].split(')').next().and_then(|n| n.parse().ok()).expect("a share");
        assert!(fraction * 80.0 * GIB as f64 >= (8 * GIB + missing) as f64 && fraction <= 1.0);
    }
}

#[test]
fn other_processes() {
    let others = Some(vec![(4711, 12 * GIB), (4712, 400 * MIB), (99, 300 * MIB), (100, MIB), (101, MIB)]);
    let facts = Facts { allocated: 63 * GIB, active: 63 * GIB, reserved: 65 * GIB, others, ..full() };
    insta::assert_snapshot!("other_processes", text(&facts));
    let others = Some(vec![(4711, 600 * MIB), (4712, 500 * MIB)]);
    insta::assert_snapshot!(
        "other_processes_together",
        text(&Facts { others, reserved: 77 * GIB, ..full() })
    );
    insta::assert_snapshot!(
        "other_processes_not_known",
        text(&Facts { others: None, reserved: 77 * GIB, ..full() })
    );
}

#[test]
fn frees_that_wait_during_a_capture() {
    let pool = PoolKey(3, 0);
    let holes = Holes {
        largest: hole(20 * MIB, 0x7f00, pool),
        own: 20 * MIB,
        pinned: 20 * MIB,
        pending: vec![(StreamHandle(0x7f10), 3 * GIB), (StreamHandle(0x7f20), GIB)],
        ..Holes::default()
    };
    let facts = Facts { pool, stream: StreamHandle(0x7f00), is_quiet: true, holes, ..full() };
    insta::assert_snapshot!("pending_during_a_capture", text(&facts));
    let holes = Holes {
        largest: hole(3 * GIB, 0, PoolKey(0, 0)),
        own: 20 * MIB,
        elsewhere: 4 * GIB,
        ..Holes::default()
    };
    let facts = Facts { pool, is_quiet: true, holes, allocated: 74 * GIB, active: 74 * GIB, ..full() };
    insta::assert_snapshot!("cached_during_a_capture", text(&facts));
}

#[test]
fn private_pools_that_keep_what_is_free() {
    let private = |pool| PrivateFree { pool, free: 3 * GIB, pages: 3 * GIB, is_released: false };
    let of = |pool| Facts {
        holes: Holes { largest: hole(3 * GIB, 0, pool), private: vec![private(pool)], ..Holes::default() },
        allocated: 74 * GIB,
        active: 74 * GIB,
        ..full()
    };
    insta::assert_snapshot!("a_graph_pool", text(&of(PoolKey(3, 0))));
    insta::assert_snapshot!("a_memory_pool", text(&of(PoolKey(0, 3))));
    // A setting that is set already is not advised.
    let said = text(&Facts { spare: vec![PoolKey(0, 3)], ..of(PoolKey(0, 3)) });
    assert!(!said.contains("use_on_oom"), "{said}");
}

#[test]
fn free_in_pieces() {
    let holes = Holes {
        largest: hole(310 * MIB, 0, PoolKey(0, 0)),
        own: 3 * GIB,
        pinned: 2900 * MIB,
        ..Holes::default()
    };
    let facts = Facts { holes, allocated: 75 * GIB, active: 75 * GIB, ..full() };
    insta::assert_snapshot!("free_in_pieces", text(&facts));
    let tail = Tail::Recording("/home/me/run/run.gtrace".into());
    insta::assert_snapshot!(
        "smaller_pages",
        text(&Facts { pages: Some(2 * MIB), batch: Some(93), tail, ..facts })
    );
}

#[test]
fn larger_than_the_card() {
    let facts = Facts {
        size: 100 * GIB,
        allocated: 0,
        active: 0,
        reserved: 0,
        free: 79 * GIB,
        line: None,
        holes: Holes::default(),
        holders: Vec::new(),
        missing: 21 * GIB,
        tail: Tail::Failed("No space left on device (os error 28): /run/gapless-oom.1.1.gtrace".to_owned()),
        driver: Some(999),
        ..full()
    };
    insta::assert_snapshot!(text(&facts));
}

#[test]
fn it_begins_as_torchs_own_does() {
    for (size, said) in [
        (512, "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has"),
        (1536, "CUDA out of memory. Tried to allocate 1.50 KiB. GPU 0 has"),
        (20 * MIB, "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"),
        (1100 * GIB, "CUDA out of memory. Tried to allocate 1100.00 GiB. GPU 0 has"),
    ] {
        let text = text(&Facts { size, ..full() });
        assert!(text.starts_with(said), "{text}");
    }
}

/// Numbers that look random and are the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn bytes(&mut self) -> u64 {
        let bits = self.below(50);
        self.next() >> (63 - bits)
    }

    fn words(&mut self) -> String {
        let length = self.below(400);
        (0..length)
            .map(|_| ['a', '/', ' ', '\n', '\u{e9}', '\0', '\u{1f4a5}', '.'][self.below(8) as usize])
            .collect()
    }

    fn pool(&mut self) -> PoolKey {
        if self.below(2) == 0 { PoolKey(0, 0) } else { PoolKey(self.below(3), self.next() >> self.below(64)) }
    }

    fn facts(&mut self) -> Facts {
        let private = (0..self.below(4)).map(|_| {
            let free = self.bytes();
            PrivateFree {
                pool: self.pool(),
                free,
                pages: free / (1 + self.below(3)),
                is_released: self.below(2) == 0,
            }
        });
        let private = private.collect();
        let pending = (0..self.below(4)).map(|_| (StreamHandle(self.next()), self.bytes())).collect();
        let largest = (self.below(4) > 0).then(|| Hole {
            size: self.bytes(),
            stream: StreamHandle(self.next()),
            pool: self.pool(),
            is_small: self.below(2) == 0,
        });
        let by = if self.below(2) == 0 {
            LimitBy::Option
        } else {
            LimitBy::Fraction(1.0 / (1 + self.below(1 << 40)) as f64)
        };
        let tail = match self.below(5) {
            0 => Tail::Off,
            1 => Tail::Left("x.gtrace".into()),
            2 => Tail::Enough("x.gtrace".into()),
            3 => Tail::Recording("x.gtrace".into()),
            _ => Tail::Failed(self.words()),
        };
        Facts {
            device: self.next() as i32,
            size: self.bytes(),
            line: (self.below(2) == 0).then(|| self.words()),
            stream: StreamHandle(self.next()),
            pool: self.pool(),
            is_quiet: self.below(2) == 0,
            allocated: self.bytes(),
            active: self.bytes(),
            reserved: self.bytes(),
            limit: (self.below(2) == 0).then(|| Limit { bytes: self.bytes(), by }),
            free: self.bytes(),
            total: self.bytes(),
            others: (self.below(2) == 0)
                .then(|| (0..self.below(9)).map(|_| (self.next() as u32, self.bytes())).collect()),
            holes: Holes {
                largest,
                own: self.bytes(),
                pinned: self.bytes(),
                elsewhere: self.bytes(),
                private,
                pending,
            },
            spare: (0..self.below(3)).map(|_| self.pool()).collect(),
            regions: (0..self.below(3)).map(|_| (self.words(), self.bytes())).collect(),
            missing: self.bytes().max(1),
            driver: (self.below(2) == 0).then(|| self.next() as i32),
            refusal: (self.below(2) == 0).then(|| self.words()),
            holders: (0..self.below(9))
                .map(|_| Holder { what: self.words(), bytes: self.bytes(), blocks: 1 })
                .collect(),
            handlers: self.below(1000) as usize,
            pages: (self.below(2) == 0).then_some(2 * MIB),
            batch: (self.below(2) == 0).then(|| self.below(100)),
            tail,
        }
    }
}

#[test]
fn whatever_the_facts_are_the_text_stays_short_and_names_what_helps() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut longest = 0;
    for _ in 0..20_000 {
        let facts = numbers.facts();
        let text = text(&facts);
        let lines: Vec<&str> = text.split('\n').collect();
        longest = longest.max(lines.len());
        assert!(lines.len() <= LINES, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS && !line.contains('\0')), "{text}");
        assert!(text.starts_with("CUDA out of memory. Tried to allocate "), "{text}");
        assert!(text.contains("\nwould help:"), "{text}");
        // The path is never cut.
        assert_eq!(
            text.contains("x.gtrace"),
            matches!(facts.tail, Tail::Left(_) | Tail::Enough(_) | Tail::Recording(_))
        );
    }
    assert!(longest >= 12, "{longest}");
}
