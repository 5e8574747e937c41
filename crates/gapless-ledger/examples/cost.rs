//! The cost of the ledger: asking for bytes and giving them back, alone and with other processes' entries in the file.

use gapless_ledger::{Answer, Ledger, Processes, Share, Size, Who};
use std::time::Instant;

const TIMES: u32 = 20_000;

#[derive(Debug)]
struct Numbered(u32);

impl Processes for Numbered {
    fn me(&self) -> Who {
        Who { pid: self.0, start: 1, space: 0 }
    }

    fn is_alive(&self, _: Who) -> bool {
        true
    }
}

fn main() {
    let root =
        if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    for others in [0, 1, 7, 63] {
        let path = root.join(format!("gapless-ledger-cost-{}", std::process::id()));
        let share = |name: &str| Share { name: name.into(), size: Size::Bytes(1 << 30), borrow: false };
        let join = |pid: u32, name: &str| {
            Ledger::join(&path, 64 << 30, &share(name), Box::new(Numbered(pid))).expect("a place")
        };
        let rest: Vec<Ledger> = (0..others).map(|n| join(n + 2, "others")).collect();
        let mut own = join(1, "own");
        let began = Instant::now();
        for _ in 0..TIMES {
            assert_eq!(own.ask(2 << 20).expect("a ledger"), Answer::Granted);
            own.give(2 << 20);
        }
        let each = began.elapsed().as_nanos() / u128::from(2 * TIMES);
        println!("{:3} other processes: {:.1} us a change", rest.len(), each as f64 / 1e3);
        std::fs::remove_file(path).expect("removed");
    }
}
