//! Work on many threads whose results come back in order, with a bounded number of jobs alive.

use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};

/// Hands each of `jobs` to `work` and its result to `sink`, in the order of the jobs. Each thread has a state of its
/// own. At most three jobs for each thread are alive between the two: that bounds the memory. Jobs are made and
/// results taken on the calling thread.
pub(crate) fn ordered<J: Send, R: Send, S>(
    threads: usize,
    mut jobs: impl Iterator<Item = Result<J>>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, J) -> R + Sync,
    mut sink: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    if threads <= 1 {
        let mut state = state();
        return jobs.try_for_each(|job| sink(work(&mut state, job?)));
    }
    let (to_work, from_main) = channel::<(usize, J)>();
    let (to_main, from_work) = channel::<(usize, R)>();
    let queue: Mutex<Receiver<(usize, J)>> = Mutex::new(from_main);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (queue, to_main, state, work) = (&queue, to_main.clone(), &state, &work);
            scope.spawn(move || {
                let mut state = state();
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((index, job)) = next else { break };
                    if to_main.send((index, work(&mut state, job))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(to_main);
        // Dropped on every way out, which ends the threads.
        let to_work = to_work;
        let (mut sent, mut taken, mut waiting) = (0, 0, BTreeMap::new());
        let mut is_over = false;
        loop {
            while !is_over && sent - taken < 3 * threads {
                match jobs.next() {
                    Some(job) => {
                        // Fails only if every thread panicked; `recv` below then ends the loop.
                        let _ = to_work.send((sent, job?));
                        sent += 1;
                    }
                    None => is_over = true,
                }
            }
            if sent == taken {
                return Ok(());
            }
            let Ok((index, result)) = from_work.recv() else { return Ok(()) };
            waiting.insert(index, result);
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
    use crate::error::Error;

    #[test]
    fn results_come_in_order_and_few_jobs_are_alive() {
        for threads in [1, 2, 5] {
            let made = std::cell::Cell::new(0);
            let mut seen = Vec::new();
            let jobs = (0..500).map(|job| {
                made.set(job + 1);
                Ok(job)
            });
            let work = |_: &mut (), job: usize| {
                (0..(job * 7919) % 1000).fold(job, |sum, _| std::hint::black_box(sum))
            };
            ordered(
                threads,
                jobs,
                || (),
                work,
                |result| {
                    seen.push(result);
                    assert!(made.get() <= seen.len() + 3 * threads);
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(seen, (0..500).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_of_a_job_or_of_the_sink_ends_it() {
        let bad = || Error::refused::<usize>(std::path::Path::new("x"), "bad", "");
        let jobs = (0..50).map(|job| if job == 20 { bad() } else { Ok(job) });
        assert!(ordered(3, jobs, || (), |_, job| job, |_| Ok(())).is_err());
        let jobs = (0..50).map(Ok);
        assert!(
            ordered(3, jobs, || (), |_, job| job, |job| if job == 7 { bad().map(|_| ()) } else { Ok(()) })
                .is_err()
        );
    }
}
