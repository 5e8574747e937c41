//! Runs that lie in folders: `rank0.pickle` and so on, and `case.json` with the odd rank and its cause.

use gapless_report::Analysis;
use gapless_report::ranks::{self, RankFile, Run, Summary};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Judges every run below `root`; true if all answers were right.
pub(crate) fn cases(root: &Path) -> bool {
    let mut all: Vec<PathBuf> = std::fs::read_dir(root)
        .expect("a folder of runs")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("case.json").exists())
        .collect();
    all.sort();
    let (next, good) = (AtomicUsize::new(0), Mutex::new([[0, 0], [0, 0]]));
    let work = || {
        while let Some(folder) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (planted, right) = judge(folder);
            let mut good = good.lock().expect("no panic");
            good[usize::from(!planted)][0] += u32::from(right);
            good[usize::from(!planted)][1] += 1;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let [planted, clean] = good.into_inner().expect("no panic");
    println!(
        "edited snapshots: {} of {} planted named rightly, nothing named in {} of {} clean",
        planted[0], planted[1], clean[0], clean[1]
    );
    planted[0] == planted[1] && clean[0] == clean[1]
}

/// True if a fault was planted, and true if the answer is right.
fn judge(folder: &Path) -> (bool, bool) {
    let text = std::fs::read_to_string(folder.join("case.json")).expect("a readable case");
    let case: Value = serde_json::from_str(&text).expect("JSON");
    let count = (0..).take_while(|rank| name(folder, *rank).exists()).count() as u32;
    let file = |rank: u32| {
        let options = gapless_ingest::ReadOptions::default();
        let trace = gapless_ingest::open(&name(folder, rank), &options).expect("a trace");
        let (devices, error) = match Analysis::of(&trace) {
            Ok(analysis) => (Summary::of(&analysis), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        RankFile { rank, file: format!("rank{rank}"), devices, error }
    };
    let files = (0..count).map(file).collect();
    let report = ranks::report(&Run { path: "case".to_owned(), files, ..Run::default() });
    let found: Vec<(u32, &str)> = report.odd_ranks.iter().map(|odd| (odd.rank, odd.why.word())).collect();
    let odd = case["odd"].as_object();
    let wanted: Vec<(u32, &str)> = odd
        .map(|odd| (odd["rank"].as_u64().unwrap_or(0) as u32, odd["why"].as_str().unwrap_or("")))
        .into_iter()
        .collect();
    for row in report.ranks.iter().filter(|row| row.error.is_some()) {
        println!("       {}: rank {} cannot be read: {:?}", folder.display(), row.rank, row.error);
    }
    if found != wanted {
        let steps: Vec<u64> = report.ranks.iter().filter_map(|rank| rank.steps).collect();
        let members = |group: &ranks::model::Group| group.ranks.iter().map(|id| id.rank).collect::<Vec<_>>();
        let groups: Vec<Vec<u32>> = report.groups.iter().map(members).collect();
        println!(
            "  FAIL {} {}\n       groups {groups:?}, steps {steps:?}, {} -> {found:?}, wanted {wanted:?}",
            folder.file_name().unwrap_or_default().display(),
            case["about"].as_str().unwrap_or(""),
            case["fault"]
        );
        for odd in &report.odd_ranks {
            println!("       rank {}: {} {}; also {:?}", odd.rank, odd.why.word(), odd.sentence, odd.also);
            for holder in odd.holders.iter().take(3) {
                println!(
                    "         {} MiB, peers {} MiB: {}",
                    holder.bytes >> 20,
                    holder.peer_bytes >> 20,
                    holder.label
                );
            }
        }
    }
    (odd.is_some(), found == wanted)
}

fn name(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank{rank}.pickle"))
}
