//! Every text for people keeps to 80 columns if it is not shown on a terminal, on every recorded run.

mod support;

use support::{all_traces, repo, run_in, trace};
use unicode_width::UnicodeWidthStr;

/// Lines that are wider than 80 columns.
fn wide(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.width() > 80).collect()
}

fn keeps(args: &[&str]) {
    // With whole paths, which are long.
    let done = run_in(&repo("testdata"), args, None);
    assert!(done.code < 2, "{args:?}: {}", done.err);
    assert_eq!(wide(&done.out), [""; 0], "{args:?}");
}

#[test]
fn reports_fit_80_columns() {
    for (_, path) in all_traces() {
        keeps(&["report", &path.display().to_string(), "--top", "30"]);
    }
}

#[test]
fn diffs_fit_80_columns() {
    let traces = all_traces();
    for pair in traces.windows(2) {
        let [before, after] = [&pair[0].1, &pair[1].1].map(|path| path.display().to_string());
        keeps(&["diff", &before, &after]);
    }
}

#[test]
fn texts_of_many_ranks_fit_80_columns() {
    let folder = tempfile::tempdir().expect("a folder");
    let traces = ["leak", "gc_split", "gpt2_train", "split_round", "oom", "infer_cnn", "multistream"];
    for (side, shift) in [("before", 0), ("after", 1)] {
        let side = folder.path().join(side).join("a-folder-with-a-long-name-below-another-one");
        std::fs::create_dir_all(&side).expect("made");
        for rank in 0..40 {
            // Six replicas of each run, so that there are groups, and one of another run among them.
            let name = traces[(rank / 6 + if rank % 6 == 5 { shift } else { 0 }) % traces.len()];
            std::fs::copy(trace(name), side.join(format!("rank{rank}.pickle.gz"))).expect("copied");
        }
        std::fs::write(side.join("rank40.pickle"), b"").expect("written");
    }
    let side = |name: &str| {
        let side = folder.path().join(name).join("a-folder-with-a-long-name-below-another-one");
        side.display().to_string()
    };
    let (before, after) = (side("before"), side("after"));
    keeps(&["report", &before]);
    keeps(&["diff", &before, &after]);
    keeps(&["check", &before, "--max-peak-reserved", "1MiB", "--max-spread", "1%"]);
    let few: Vec<String> = (0..8).map(|rank| format!("{before}/rank{rank}.pickle.gz")).collect();
    let few: Vec<&str> = few.iter().map(String::as_str).collect();
    keeps(&[&["report"][..], &few].concat());
}

#[test]
fn checks_fit_80_columns() {
    for (name, path) in all_traces() {
        let path = path.display().to_string();
        // It is an error if a run without history keeps to a limit, because its peak is unknown.
        let limits: &[&str] = if name == "nohistory" { &["1MiB"] } else { &["1MiB", "4TiB"] };
        for limit in limits {
            let limits = ["--max-peak-allocated", limit, "--baseline", &path, "--tolerance", "1%"];
            keeps(&[&["check", &path][..], &limits].concat());
        }
    }
}

#[test]
fn replays_fit_80_columns() {
    for name in ["gpt2_train", "split_round", "oom", "multistream"] {
        keeps(&["replay", &trace(name)]);
        let settings = "torch:max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
        let with = ["--with", settings, "--with", "gapless", "--min-capacity", "--capacity", "9GiB"];
        keeps(&[&["replay", &trace(name)][..], &with].concat());
    }
}

#[test]
fn advice_and_post_mortems_fit_80_columns() {
    for name in ["split_round", "oom"] {
        keeps(&["advise", &trace(name)]);
        keeps(&["advise", &trace(name), "--capacity", "2GiB"]);
    }
    for name in ["oom", "oom_exp", "retries"] {
        keeps(&["oom", &trace(name)]);
    }
}
