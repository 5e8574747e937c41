use super::*;
use std::sync::Arc;
use std::time::Instant;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
    fn alarm(seconds: u32) -> u32;
}

/// Runs `work` in a forked child, which is killed after ten seconds. Returns the result of `work`.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `work`, which allocates little, and ends at once.
    unsafe {
        let child = fork();
        if child == 0 {
            alarm(10);
            _exit(i32::from(!work()));
        }
        let mut status = -1;
        assert_eq!(waitpid(child, &raw mut status, 0), child);
        status == 0
    }
}

#[test]
fn many_threads_count_to_their_sum() {
    static COUNT: Lock<u64> = Lock::new(|| 0);
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| (0..20_000).for_each(|_| *COUNT.lock() += 1));
        }
    });
    assert_eq!(*COUNT.lock(), 160_000);
    assert!(COUNT.try_lock().is_some());
}

#[test]
fn a_lock_that_is_held_is_waited_for_and_not_tried() {
    static LOCK: Lock<u32> = Lock::new(|| 7);
    let held = LOCK.lock();
    assert!(LOCK.try_lock().is_none());
    let other = std::thread::spawn(|| *LOCK.lock() += 1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(*held, 7, "the other thread waits");
    drop(held);
    other.join().expect("a thread");
    assert_eq!(*LOCK.lock(), 8);
}

#[test]
fn a_child_takes_what_another_thread_held_and_begins_anew() {
    static HELD: Lock<Vec<u32>> = Lock::new(|| vec![1]);
    static OPEN: Lock<Vec<u32>> = Lock::new(|| vec![1]);
    HELD.lock().push(2);
    OPEN.lock().push(2);
    let held = HELD.lock();
    // The first thread of the child that takes the lock begins with a fresh value; the others wait for that thread.
    let is_fine = in_child(|| {
        HELD.lock().push(3);
        let tried = HELD.try_lock().is_some_and(|value| *value == [1, 3]);
        tried && *HELD.lock() == [1, 3] && *OPEN.lock() == [1, 2]
    });
    assert!(is_fine, "the child waits, or has a value that may be half changed");
    assert!(in_child(|| HELD.try_lock().is_some_and(|value| *value == [1])), "also where it only tries");
    // A child of a child.
    assert!(in_child(|| {
        let held = HELD.lock();
        let is_fine = in_child(|| *HELD.lock() == [1]);
        drop(held);
        is_fine && *HELD.lock() == [1]
    }));
    assert_eq!(*held, [1, 2], "the parent has what it had");
    drop(held);
    assert_eq!(*HELD.lock(), [1, 2]);
}

#[test]
fn the_thread_that_forks_with_a_lock_opens_it_in_both_processes() {
    static LOCK: Lock<u32> = Lock::new(|| 0);
    let mut held = LOCK.lock();
    *held = 5;
    // SAFETY: the child ends at once.
    let child = unsafe { fork() };
    drop(held);
    if child == 0 {
        // SAFETY: `alarm` and `_exit` take numbers.
        unsafe {
            alarm(10);
            _exit(i32::from(*LOCK.lock() != 5))
        }
    }
    let mut status = -1;
    // SAFETY: an out-pointer of our own.
    unsafe { waitpid(child, &raw mut status, 0) };
    assert_eq!((status, *LOCK.lock()), (0, 5));
}

#[test]
fn locks_of_children_that_were_forked_at_any_moment_can_be_had() {
    static LOCK: Lock<Vec<u64>> = Lock::new(Vec::new);
    static SIGNAL: Signal = Signal::new();
    let is_over = AtomicBool::new(false);
    let children = std::thread::scope(|threads| {
        for number in 0..3 {
            let is_over = &is_over;
            threads.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let mut held = LOCK.lock();
                    held.push(number);
                    held.truncate(100);
                    SIGNAL.notify_all();
                    if number == 0 {
                        held = SIGNAL.wait_for(held, Duration::from_micros(50));
                    }
                    held.truncate(50);
                }
            });
        }
        let fine =
            (0..300).filter(|_| in_child(|| LOCK.lock().len() <= 100 && LOCK.try_lock().is_some())).count();
        is_over.store(true, Ordering::Relaxed);
        fine
    });
    assert_eq!(children, 300);
}

#[test]
fn signals_wake_and_end() {
    let pair = Arc::new((Lock::with(0, || 0), Signal::new()));
    let other = pair.clone();
    let thread = std::thread::spawn(move || {
        let mut held = other.0.lock();
        while *held == 0 {
            held = other.1.wait(held);
        }
        *held += 1;
        *held
    });
    std::thread::sleep(Duration::from_millis(10));
    *pair.0.lock() = 1;
    pair.1.notify_all();
    assert_eq!(thread.join().expect("a thread"), 2);
    let began = Instant::now();
    let held = pair.1.wait_for(pair.0.lock(), Duration::from_millis(5));
    assert!(*held == 2 && began.elapsed() >= Duration::from_millis(4));
}

#[test]
fn a_value_is_set_once_whoever_comes_first() {
    static VALUE: SetOnce<String> = SetOnce::new();
    assert!(VALUE.get().is_none());
    let made: Vec<&str> = std::thread::scope(|threads| {
        let threads: Vec<_> = (0..8)
            .map(|number| threads.spawn(move || VALUE.get_or_init(|| number.to_string()).as_str()))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    assert!(made.iter().all(|value| *value == made[0]));
    assert_eq!(VALUE.set("later".to_owned()), Err("later".to_owned()));
    // A cell that is dropped drops its value.
    let shared = Arc::new(());
    let cell = SetOnce::new();
    assert!(cell.set(shared.clone()).is_ok());
    drop(cell);
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[cfg(debug_assertions)]
#[test]
fn locks_of_statics_are_known_once_they_were_taken() {
    static LOCK: Lock<u8> = Lock::new(|| 3);
    let line = line!() - 1;
    static LATER: Lock<u8> = Lock::new(|| 4);
    drop(LOCK.lock());
    let wanted = format!("locks/tests.rs:{line}");
    let at = (0..).map_while(known::place).position(|place| place.ends_with(&wanted)).expect("it is known");
    assert!(known::hold(at));
    assert!(LOCK.try_lock().is_none());
    assert!(in_child(|| *LOCK.lock() == 3));
    // A lock that is listed meanwhile, here or in another test, changes no number.
    drop(LATER.lock());
    known::let_go(at);
    assert!(LOCK.try_lock().is_some());
    assert!(!known::hold(usize::MAX));
}
