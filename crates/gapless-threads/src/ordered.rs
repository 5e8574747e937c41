//! A stream of jobs whose results come back in order, with a bounded number of jobs alive.

use crate::{point, start};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};

/// Hands each of `jobs` to `work` and its result to `sink`, in the order of the jobs. Each thread has a state of its
/// own. At most three jobs for each thread are alive between `work` and `sink`, which bounds the memory. Jobs are
/// made and results taken on the calling thread.
///
/// # Errors
/// The first error of a job or of the sink, which ends the work.
///
/// # Panics
/// If `state`, `work`, `sink` or the jobs do.
pub fn ordered<J: Send, R: Send, S, E>(
    name: &'static str,
    threads: usize,
    mut jobs: impl Iterator<Item = Result<J, E>>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, J) -> R + Sync,
    mut sink: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let here = |jobs: &mut dyn Iterator<Item = Result<J, E>>, sink: &mut dyn FnMut(R) -> Result<(), E>| {
        let mut state = state();
        for job in jobs {
            let job = job?;
            point(name);
            sink(work(&mut state, job))?;
        }
        Ok(())
    };
    if threads <= 1 {
        return here(&mut jobs, &mut sink);
    }
    let (to_work, from_main) = channel::<(usize, J)>();
    let (to_main, from_work) = channel::<(usize, std::thread::Result<R>)>();
    let queue: Mutex<Receiver<(usize, J)>> = Mutex::new(from_main);
    std::thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..threads {
            let (queue, to_main, state, work) = (&queue, to_main.clone(), &state, &work);
            let run = move || {
                let mut kept = None;
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((index, job)) = next else { break };
                    // The caller waits for this result, so a panic must be sent in its place.
                    let done = catch_unwind(AssertUnwindSafe(|| {
                        point(name);
                        work(kept.get_or_insert_with(state), job)
                    }));
                    let is_over = done.is_err();
                    if to_main.send((index, done)).is_err() || is_over {
                        break;
                    }
                }
            };
            started += usize::from(start(scope, name, run).is_ok());
        }
        drop(to_main);
        if started == 0 {
            return here(&mut jobs, &mut sink);
        }
        // Dropped on every way out, which ends the threads.
        let to_work = to_work;
        let (mut sent, mut taken, mut waiting) = (0, 0, BTreeMap::new());
        let mut is_over = false;
        loop {
            while !is_over && sent - taken < 3 * threads {
                match jobs.next() {
                    Some(job) => {
                        // Fails only if every thread panicked; the loop below then takes up the first panic.
                        let _ = to_work.send((sent, job?));
                        sent += 1;
                    }
                    None => is_over = true,
                }
            }
            if sent == taken {
                return Ok(());
            }
            // A thread that has ended early has sent its panic first.
            let (index, result) = from_work.recv().expect("a result or a panic of every job");
            waiting.insert(index, result.unwrap_or_else(|panic| resume_unwind(panic)));
            while let Some(result) = waiting.remove(&taken) {
                taken += 1;
                sink(result)?;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::ordered;
    use crate::tests::panic_of;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_few_jobs_are_alive() {
        for threads in [1, 2, 5] {
            let made = std::cell::Cell::new(0);
            let mut seen = Vec::new();
            let jobs = (0..500).map(|job| {
                made.set(job + 1);
                Ok::<usize, ()>(job)
            });
            let work = |_: &mut (), job: usize| {
                (0..(job * 7919) % 1000).fold(job, |sum, _| std::hint::black_box(sum))
            };
            let sink = |result| {
                seen.push(result);
                assert!(made.get() <= seen.len() + 3 * threads);
                Ok(())
            };
            ordered("test", threads, jobs, || (), work, sink).unwrap();
            assert_eq!(seen, (0..500).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_of_a_job_or_of_the_sink_ends_it() {
        for threads in 1..=3 {
            let jobs = (0..50).map(|job| if job == 20 { Err("job") } else { Ok(job) });
            assert_eq!(ordered("test", threads, jobs, || (), |_, job| job, |_| Ok(())), Err("job"));
            let sink = |job| if job == 7 { Err("sink") } else { Ok(()) };
            assert_eq!(ordered("test", threads, (0..50).map(Ok), || (), |_, job| job, sink), Err("sink"));
        }
    }

    /// Every place that can panic, each with one of several workers, some of them, and all: the caller gets the
    /// panic, and the sink gets no result after it.
    #[test]
    fn a_panic_anywhere_is_the_callers() {
        for threads in 1..=5 {
            for bad in [0, 1, 2, 17, 49] {
                let seen = AtomicUsize::new(0);
                let run = |place: &str, from: usize| {
                    let hit = |here: &str, job: usize| {
                        assert!(here != place || job < from, "{place}");
                    };
                    seen.store(0, Ordering::Relaxed);
                    let message = panic_of(|| {
                        let jobs = (0..50).map(|job| {
                            hit("job", job);
                            Ok::<usize, ()>(job)
                        });
                        let state = || hit("state", from);
                        let work = |_: &mut (), job| {
                            hit("work", job);
                            // Only one of the later jobs fails.
                            assert!(place != "one job" || job != from, "{place}");
                            job
                        };
                        let sink = |job| {
                            hit("sink", job);
                            seen.fetch_add(1, Ordering::Relaxed);
                            Ok(())
                        };
                        let _ = ordered("test", threads, jobs, state, work, sink);
                    });
                    assert_eq!(message, place, "{threads} threads, {bad}");
                    assert!(seen.load(Ordering::Relaxed) <= from, "{place}: results past the panic");
                };
                ["job", "state", "work", "sink", "one job"].into_iter().for_each(|place| run(place, bad));
            }
        }
    }
}
