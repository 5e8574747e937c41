//! small_files COUNT [FIRST]: packs, checks and unpacks generated files of small tensors, each with another number of
//! threads, and compares the bytes. Prints a summary; a hang, a panic or a difference ends it with exit code 1.

#[path = "../tests/made/small.rs"]
mod small;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A round that takes longer counts as a hang.
const HANG: Duration = Duration::from_secs(60);

fn main() {
    let number = |at: usize| std::env::args().nth(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(count), first) = (number(1), number(2).unwrap_or(0)) else {
        eprintln!("usage: small_files COUNT [FIRST]");
        std::process::exit(2);
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (mut tensors, mut streams, mut same) = (0, 0, 0);
    let (tell, told) = channel();
    let at = folder.path().to_owned();
    let work = std::thread::spawn(move || {
        for seed in first..first + count {
            let threads = [1, 2, 3, 4, 8, 16][(seed % 6) as usize];
            if tell.send(small::round(&at, seed, threads)).is_err() {
                return;
            }
        }
    });
    loop {
        match told.recv_timeout(HANG) {
            Ok(Ok(done)) => {
                (tensors, streams, same) = (tensors + done.tensors, streams + done.streams, same + done.same);
            }
            Ok(Err(what)) => fail(&what),
            Err(RecvTimeoutError::Timeout) => fail("no file was done for a minute"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if work.join().is_err() {
        fail("it panicked");
    }
    println!(
        "{count} files of {tensors} tensors, {streams} compressed, {same} equal to others: all bytes are equal"
    );
}

fn fail(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(1);
}
