//! Work on several threads. Every pipeline of the project runs here, because all of them need the same promise:
//!
//! * A panic of any thread is a panic of the caller, with its message. The other threads take no more work, and end
//!   before the caller goes on. The caller never waits for a result that cannot come.
//! * Results come in the order of the work, for any order of the threads.
//! * If the system gives fewer threads, those that exist do all of the work; if there are none, the caller does it.
//!
//! [`each`] is for independent pieces of work, [`ordered`] for a stream of jobs in bounded memory, [`both`] for two
//! passes, [`alongside`] for two threads that talk to each other, [`crew`] for threads that the caller listens to,
//! [`or_exit`] for threads of a service.
//!
//! Each pipeline has a name. If debug assertions are on, `GAPLESS_TEST_PANIC=NAME`, or `NAME:3` for its fourth piece
//! of work, makes its worker panic. Tests try every name.

mod ordered;

pub use ordered::ordered;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

/// Panics if a test asks for it: see above. In release builds it is empty.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    {
        static WANTED: std::sync::OnceLock<Option<(String, usize)>> = std::sync::OnceLock::new();
        static PASSED: AtomicUsize = AtomicUsize::new(0);
        let wanted = WANTED.get_or_init(|| {
            let text = std::env::var("GAPLESS_TEST_PANIC").ok()?;
            let (name, number) = text.split_once(':').unwrap_or((&text, "0"));
            Some((name.to_owned(), number.parse().ok()?))
        });
        if let Some((of, number)) = wanted
            && of == name
        {
            assert!(
                PASSED.fetch_add(1, Ordering::Relaxed) != *number,
                "a test asked for a panic of {name}, piece of work {number}"
            );
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}

fn start<'scope, 'env, R: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    name: &'static str,
    work: impl FnOnce() -> R + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, R>> {
    Builder::new().name(name.to_owned()).spawn_scoped(scope, work)
}

fn joined<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Numbers of pieces of work. Each is given out once, and none after a panic.
struct Turns {
    next: AtomicUsize,
    end: usize,
}

/// Held by a thread that takes turns; ends the turns of all if the thread panics.
struct Taking<'a>(&'a Turns);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.next.store(self.0.end, Ordering::Relaxed);
        }
    }
}

impl Turns {
    fn take(&self) -> Option<usize> {
        let step = |next| (next < self.end).then_some(next + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).ok()
    }
}

/// Does `work` for 0 to `count` - 1 on at most `threads` threads, the caller's among them. Returns results in order.
///
/// # Panics
/// If `work` does.
pub fn each<R: Send>(
    name: &'static str,
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> R + Sync,
) -> Vec<R> {
    let turns = Turns { next: AtomicUsize::new(0), end: count };
    let some = || {
        let (taking, mut done) = (Taking(&turns), Vec::new());
        while let Some(at) = taking.0.take() {
            point(name);
            done.push((at, work(at)));
        }
        done
    };
    let mut done: Vec<(usize, R)> = scope(|scope| {
        let others: Vec<_> = (1..threads.min(count)).filter_map(|_| start(scope, name, some).ok()).collect();
        let mut done = some();
        for other in others {
            done.extend(joined(other));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Does `there` on a thread of its own, and `here` meanwhile. Neither may wait for the other.
///
/// # Panics
/// If one of the two does.
pub fn both<A, B: Send>(
    name: &'static str,
    here: impl FnOnce() -> A,
    there: impl FnOnce() -> B + Send,
) -> (A, B) {
    let there = Mutex::new(Some(there));
    let run = || {
        point(name);
        let there = there.lock().unwrap_or_else(PoisonError::into_inner).take();
        there.map(|there| there())
    };
    let (here, there) = scope(|scope| {
        let other = start(scope, name, run);
        let here = here();
        // If there is no thread, the caller runs both in turn.
        (here, other.map_or_else(|_| run(), joined))
    });
    (here, there.expect("it runs once"))
}

/// As [`both`], for two pieces that send data to each other. A channel's ends must be moved into the two, so that
/// each sees when the other is gone.
///
/// # Panics
/// If one of the two does, and if the system gives no thread.
pub fn alongside<A, B: Send>(
    name: &'static str,
    here: impl FnOnce() -> A,
    there: impl FnOnce() -> B + Send,
) -> (A, B) {
    scope(|scope| {
        let run = || {
            point(name);
            there()
        };
        let other = match start(scope, name, run) {
            Ok(other) => other,
            Err(error) => panic!("no thread can be started: {error}"),
        };
        let here = here();
        (here, joined(other))
    })
}

/// Does `work` on a thread of a program that serves: a panic ends the process, with exit code 101, because a service
/// without one of its threads would give outdated answers.
pub fn or_exit<R>(name: &'static str, work: impl FnOnce() -> R) -> R {
    let run = || {
        point(name);
        work()
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| std::process::exit(101))
}

/// Does each piece of work on a thread of its own, and `meanwhile` here. Returns the results in order; those without
/// a thread are missing.
///
/// # Panics
/// If one of them does, after all have ended.
pub fn crew<R: Send>(
    name: &'static str,
    work: impl IntoIterator<Item = impl FnOnce() -> R + Send>,
    meanwhile: impl FnOnce(),
) -> Vec<R> {
    scope(|scope| {
        let threads: Vec<_> = work
            .into_iter()
            .filter_map(|work| {
                let run = move || {
                    point(name);
                    work()
                };
                start(scope, name, run).ok()
            })
            .collect();
        meanwhile();
        threads.into_iter().map(joined).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The message of the panic of `work`.
    pub(crate) fn panic_of(work: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it panics");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn results_come_in_order_and_each_piece_is_done_once() {
        for (threads, count) in [(0, 0), (1, 5), (3, 0), (3, 1), (3, 2), (2, 100), (40, 100)] {
            let done = AtomicUsize::new(0);
            let results = each("test", threads, count, |at| {
                done.fetch_add(1, Ordering::Relaxed);
                at * at
            });
            assert_eq!(results, (0..count).map(|at| at * at).collect::<Vec<_>>());
            assert_eq!(done.into_inner(), count);
        }
    }

    #[test]
    fn a_panic_of_any_piece_is_the_callers_and_ends_the_others() {
        for threads in 1..=4 {
            for bad in [0, 1, 7, 999] {
                let done = AtomicUsize::new(0);
                let message = panic_of(|| {
                    each("test", threads, 100_000, |at| {
                        assert!(at != bad, "piece {bad}");
                        done.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                    });
                });
                assert_eq!(message, format!("piece {bad}"));
                assert!(done.into_inner() < 100_000, "the others go on");
            }
        }
    }

    #[test]
    fn a_panic_of_either_of_two_is_the_callers() {
        assert_eq!(both("test", || 1, || 2), (1, 2));
        let here: fn() = || panic!("{}", "here");
        let there: fn() = || panic!("{}", "there");
        let fine: fn() = || ();
        assert_eq!(
            panic_of(|| {
                both("test", here, fine);
            }),
            "here"
        );
        assert_eq!(
            panic_of(|| {
                both("test", fine, there);
            }),
            "there"
        );
        // If one end of the channel is dropped, the other side ends.
        let (send, receive) = channel::<u32>();
        let sends = move || while send.send(1).is_ok() {};
        let panics = move || {
            let _ = receive.recv();
            panic!("{}", "received")
        };
        assert_eq!(
            panic_of(|| {
                alongside("test", sends, panics);
            }),
            "received"
        );
        let (send, receive) = channel::<u32>();
        let panics = move || {
            let _ = send.send(1);
            panic!("{}", "sent")
        };
        assert_eq!(
            panic_of(|| {
                alongside("test", || receive.iter().count(), panics);
            }),
            "sent"
        );
    }

    #[test]
    fn a_panic_of_any_of_a_crew_is_the_callers() {
        for bad in 0..4 {
            let (send, receive) = channel();
            let work: Vec<_> = (0..3)
                .map(|thread| {
                    let send = send.clone();
                    move || {
                        assert!(thread != bad, "thread {bad}");
                        send.send(thread).expect("somebody listens");
                        thread
                    }
                })
                .collect();
            drop(send);
            let mut heard = 0;
            let done =
                catch_unwind(AssertUnwindSafe(|| crew("test", work, || heard = receive.iter().count())));
            assert_eq!(heard, if bad < 3 { 2 } else { 3 });
            assert_eq!(done.ok(), (bad == 3).then(|| vec![0, 1, 2]));
        }
    }
}
