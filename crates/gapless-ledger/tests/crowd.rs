//! Real processes on one ledger, killed at random moments: a reader never sees more than the card, nor a tenant above
//! its share, and memory of killed processes comes back. The processes run this test program itself.

use gapless_ledger::ledger::look;
use gapless_ledger::{Answer, Ledger, LedgerError, Processes, Share, Size, System, Tick};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const CAPACITY: u64 = 1000;
const TENANTS: [(&str, u64, bool); 3] = [("a", 600, false), ("b", 250, false), ("c", 150, true)];
const CHILD: &str = "GAPLESS_LEDGER_CHILD";

fn share(name: &str, bytes: u64, borrow: bool) -> Share {
    Share { name: name.into(), size: Size::Bytes(bytes), borrow }
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("gapless-ledger-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn join(path: &Path, name: &str, bytes: u64, borrow: bool) -> Result<Ledger, LedgerError> {
    Ledger::join(path, CAPACITY, &share(name, bytes, borrow), Box::new(System))
}

/// A child asks for more than it may have until it is killed.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let (tenant, path) = text.split_once(' ').expect("a tenant and a file");
    let (name, limit, borrow) = TENANTS[tenant.parse::<usize>().expect("a number")];
    let mut ledger = join(Path::new(path), name, limit, borrow).expect("a place");
    let mut seed = u64::from(std::process::id()) | 1 << 40;
    let mut held: Vec<u64> = Vec::new();
    loop {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let bytes = 1 + seed % 60;
        match ledger.ask(bytes).expect("a ledger") {
            Answer::Granted => held.push(bytes),
            Answer::Wait if seed % 3 == 0 => ledger.withdraw(),
            Answer::Wait => {}
            Answer::Refused => {
                if let Some(bytes) = held.pop() {
                    ledger.give(bytes);
                }
            }
        }
        if seed % 5 == 0 {
            let Tick { overdue, .. } = ledger.tick().expect("a ledger");
            let mut left = overdue;
            while left > 0
                && let Some(bytes) = held.pop()
            {
                ledger.give(bytes);
                left = left.saturating_sub(bytes);
            }
        }
        assert_eq!(ledger.entry().held, held.iter().sum::<u64>());
    }
}

fn start(path: &Path, tenant: usize) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--test-threads", "1"])
        .env(CHILD, format!("{tenant} {}", path.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child")
}

fn check(path: &Path) -> u64 {
    let book = look(path).expect("a ledger");
    assert!(book.total() <= CAPACITY, "{book:?}");
    for (name, limit, borrow) in TENANTS {
        assert!(borrow || book.held_by(name) <= limit, "{name}: {book:?}");
    }
    book.total()
}

#[test]
fn processes_that_are_killed_leave_the_others_their_shares() {
    let path = scratch("crowd");
    drop(join(&path, "b", 250, false).expect("the first"));
    let mut children: Vec<Child> = (0..6).map(|n| start(&path, n % 3)).collect();
    let (mut kills, mut most, mut looks) = (0usize, 0, 0u32);
    // It checks until every child has had its turns, even on a slow machine.
    while kills < 40 || most < CAPACITY / 2 {
        most = most.max(check(&path));
        looks += 1;
        assert!(looks < 5_000_000, "nobody takes anything");
        if looks % 50 == 0 {
            let at = kills % children.len();
            // The kill usually comes while the child has the lock or waits for it. A child that ended itself failed.
            assert!(children[at].try_wait().expect("its state").is_none(), "a child ended by itself");
            children[at].kill().expect("a kill");
            // Half of the children are not reaped, because such processes must count as dead too.
            let killed = std::mem::replace(&mut children[at], start(&path, kills % 3));
            kills += 1;
            if kills % 2 == 0 {
                let mut killed = killed;
                killed.wait().expect("its end");
            } else {
                std::mem::forget(killed);
            }
        }
    }
    for child in &mut children {
        child.kill().expect("a kill");
        child.wait().expect("its end");
    }
    // This process never left either. It joins again as itself, and dead processes are gone.
    let mut last = join(&path, "b", 250, false).expect("a place");
    assert_eq!(last.look().expect("a ledger").total(), 0);
    assert_eq!(last.ask(250).expect("a ledger"), Answer::Granted);
    last.leave();
    assert_eq!(look(&path).expect("a ledger").iter().count(), 0);
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn a_torn_record_is_set_right_by_its_owner() {
    let path = scratch("torn");
    let mut ledger = join(&path, "a", 600, false).expect("a place");
    assert_eq!(ledger.ask(100).expect("a ledger"), Answer::Granted);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.write_all_at(&[0xff; 40], 128 + 20).expect("half a record");
    assert_eq!(look(&path).expect("a ledger").total(), 0, "a torn record is nothing");
    ledger.tick().expect("a ledger");
    assert_eq!(look(&path).expect("a ledger").total(), 100);
    assert_eq!(ledger.ask(501).expect("a ledger"), Answer::Refused);
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn a_ledger_that_was_removed_is_made_again_by_who_uses_it() {
    let path = scratch("removed");
    let mut ledger = join(&path, "a", 600, false).expect("a place");
    ledger.ask(100).expect("a ledger");
    std::fs::remove_file(&path).expect("removed");
    ledger.tick().expect("a ledger");
    assert_eq!(look(&path).expect("a ledger").total(), 100);
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn what_is_no_ledger_is_left_alone() {
    let path = scratch("foreign");
    std::fs::write(&path, vec![b'x'; 4096]).expect("a file");
    let error = join(&path, "a", 600, false).expect_err("no ledger").to_string();
    assert!(error.contains("not this card's ledger"), "{error}");
    assert_eq!(std::fs::read(&path).expect("it is there"), vec![b'x'; 4096]);
    // A process was killed while it wrote the first bytes of a ledger.
    std::fs::write(&path, "gap").expect("a file");
    join(&path, "a", 600, false).expect("it is begun again").leave();
    // A card of another size is accepted once no process uses the ledger.
    let user = join(&path, "a", 600, false).expect("a place");
    let other = |path: &Path| Ledger::join(path, 2 * CAPACITY, &share("b", 1, false), Box::new(System));
    assert!(matches!(other(&path), Err(LedgerError::Foreign(_))));
    user.leave();
    other(&path).expect("nobody used it").leave();
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn what_is_outside_counts_and_is_a_fact() {
    let path = scratch("outside");
    let mut ledger = join(&path, "a", 600, false).expect("a place");
    assert_eq!(ledger.ask_outside(100).expect("a ledger"), Answer::Granted);
    assert_eq!(ledger.ask(500).expect("a ledger"), Answer::Granted);
    ledger.set_outside(120);
    let seen = look(&path).expect("a ledger");
    assert_eq!((seen.total(), seen.iter().next().map(|e| e.outside)), (620, Some(120)));
    assert_eq!(ledger.ask(1).expect("a ledger"), Answer::Refused);
    ledger.give(500);
    ledger.set_outside(0);
    assert_eq!(look(&path).expect("a ledger").total(), 0);
    assert_eq!(System.me(), ledger.who());
    std::fs::remove_file(path).expect("removed");
}
