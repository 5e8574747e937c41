//! Tests of each call that may wait, under signals whose handler interrupts kernel calls.

use super::*;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `struct sigaction` of 64-bit Linux, as the C library has it.
#[repr(C)]
struct Action {
    handler: extern "C" fn(i32),
    mask: [u64; 16],
    flags: i32,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: i32, new: *const Action, old: *mut Action) -> i32;
    fn pthread_self() -> usize;
    fn pthread_kill(thread: usize, signal: i32) -> i32;
    fn listen(socket: i32, backlog: i32) -> i32;
}

const USER_1: i32 = 10;
static RUNG: AtomicU64 = AtomicU64::new(0);

extern "C" fn ring(_: i32) {
    RUNG.fetch_add(1, Ordering::Relaxed);
}

/// Runs `work` in a thread that gets thousands of signals a second, each of which interrupts its kernel call.
fn under_signals<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // No SA_RESTART. SAFETY: the handler only counts.
    unsafe {
        sigaction(
            USER_1,
            &Action { handler: ring, mask: [0; 16], flags: 0, restorer: 0 },
            std::ptr::null_mut(),
        )
    };
    let is_over = AtomicBool::new(false);
    let before = RUNG.load(Ordering::Relaxed);
    // SAFETY: `pthread_self` takes nothing and cannot fail.
    let thread = unsafe { pthread_self() };
    std::thread::scope(|threads| {
        let rings = threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: the signalled thread waits for this one, so it lives.
                unsafe { pthread_kill(thread, USER_1) };
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        while RUNG.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        rings.join().expect("a thread");
        result
    })
}

fn name(of: &str) -> String {
    format!("gapless.test.{}.{of}", std::process::id())
}

fn pair(of: &str, patience: Duration) -> (Line, Line) {
    let name = name(of);
    let listener = UnixListener::bind_addr(&address(&name).expect("a name")).expect("it is free");
    let here = Line::connect(&name, patience).expect("it listens");
    let there = Line::accepted(listener.accept().expect("it came").0, patience).expect("a socket");
    (here, there)
}

const LONG: Duration = Duration::from_secs(30);
/// Time that the other end does nothing, so that this one waits.
const LATE: Duration = Duration::from_millis(60);

#[test]
fn bytes_and_files_arrive_whole_under_signals() {
    let (here, there) = pair("whole", LONG);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(LATE);
            // More bytes than a socket holds, so the other end waits for room.
            let mut bytes = vec![0; 4 << 20];
            there.read(&mut bytes[..100]).expect("some");
            std::thread::sleep(LATE);
            there.read(&mut bytes[100..]).expect("the rest");
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
            std::thread::sleep(LATE);
            there.write(&[7; 3]).expect("it reads");
            std::thread::sleep(LATE);
            let files: Vec<OwnedFd> =
                (0..BATCH).map(|_| std::fs::File::open("/dev/null").expect("it opens").into()).collect();
            let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
            for _ in 0..20 {
                there.send(5, &numbers).expect("it takes them");
                there.read(&mut [0]).expect("it says so");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        under_signals(|| {
            let bytes: Vec<u8> = (0..4 << 20).map(|at| at as u8).collect();
            here.write(&bytes).expect("it reads");
            let mut answer = [0; 3];
            here.read(&mut answer).expect("it answers");
            assert_eq!(answer, [7; 3]);
            for _ in 0..20 {
                let brought = here.receive().expect("it sends");
                assert_eq!((brought.status, brought.files.len(), brought.is_cut_off), (5, BATCH, false));
                here.write(&[1]).expect("it reads");
            }
        });
    });
}

#[test]
fn messages_wait_for_room_under_signals() {
    let (here, there) = pair("room", LONG);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(LATE);
            let mut status = [0; 4];
            for wanted in 0..5000u32 {
                there.read(&mut status).expect("it sends");
                assert_eq!(status, wanted.to_ne_bytes());
            }
        });
        under_signals(|| (0..5000).for_each(|status| here.send(status, &[]).expect("there is room again")));
    });
}

#[test]
fn a_listener_whose_queue_is_full_is_waited_for_under_signals() {
    let name = name("queue");
    let listener = UnixListener::bind_addr(&address(&name).expect("a name")).expect("it is free");
    // SAFETY: the arguments are numbers. With this backlog one connection may wait beside the next one.
    assert_eq!(unsafe { listen(listener.as_raw_fd(), 0) }, 0);
    let first = Line::connect(&name, LONG).expect("it listens");
    let began = Instant::now();
    let refused = under_signals(|| Line::connect(&name, LATE)).expect_err("it is full");
    assert!(refused.kind() == io::ErrorKind::WouldBlock && began.elapsed() >= LATE);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(LATE);
            (0..2).for_each(|_| drop(listener.accept().expect("it came")));
        });
        under_signals(|| Line::connect(&name, LONG)).expect("there is room again");
    });
    drop(first);
}

#[test]
fn patience_ends_though_signals_do_not() {
    let patience = Duration::from_millis(120);
    let (here, there) = pair("patience", patience);
    let began = Instant::now();
    let error = under_signals(|| here.read(&mut [0; 8])).expect_err("no answer");
    assert!(error.kind() == io::ErrorKind::TimedOut && began.elapsed() >= patience, "{error}");
    let error = under_signals(|| here.receive()).err().expect("no answer");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let error = under_signals(|| here.write(&vec![0; 64 << 20])).expect_err("it is not read");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(there);
    assert!(
        under_signals(|| here.write(&[1])).is_err(),
        "the other end is gone, and no signal ends the process"
    );
}
