//! Measures the planner on the kinds of instances that its targets speak of.
//!
//! `cargo run --release -p gapless-plan --example bench -- [challenging|cliff|minimise|tensors|guillotine|heavy|million|training|replan|baselines|FILE.csv]...`
//! Limits count seconds of CPU of this process, not of the clock on the wall, so that a busy machine does not change
//! the figures. `OFF=trick,trick` turns tricks off, `SEED=n` changes the seed, `LIMIT=s` the limit,
//! `ONLY=J` picks one of the set to minimise, `VERBOSE=1` prints every better plan.

use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gapless_plan::{
    Baseline, Options, Plan, Problem, Progress, Tricks, Watch, bound, carry_over, csv, generate, replan,
    solve, validate,
};
use gapless_trace::Bytes;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let set = "ABCDEFGHIJK".chars().map(|letter| format!("challenging/{letter}.1048576.csv.gz"));
    let set: Vec<String> = set.collect();
    println!(
        "{:32} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "case", "n", "ratio", "50 ms", "first s", "best s", "CPU s"
    );
    for path in asked.iter().filter(|asked| asked.ends_with(".csv")) {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        match csv::read(&text, csv::OffsetColumn::Fixed) {
            Ok(problem) => drop(case(path, &problem, None, number("LIMIT", 10.0))),
            Err(error) => println!("{path}: {error}"),
        }
    }
    if wants("challenging") {
        let total: f64 = set.iter().map(|name| case(name, &file(name), Some(1.0), 60.0).cpu).sum();
        println!("challenging at 1,048,576: {total:.3} s of CPU in all");
    }
    if wants("cliff") {
        for factor in [1.0, 1.02, 1.05, 1.10, 1.15, 1.20] {
            case(&format!("K at {factor:.2}"), &file(&set[10]), Some(-factor), 10.0);
        }
    }
    if wants("minimise") {
        let limit = number("LIMIT", 10.0);
        let only = std::env::var("ONLY").unwrap_or_default();
        let chosen = set.iter().filter(|name| only.is_empty() || name.contains(&format!("/{only}.")));
        let results: Vec<Figures> = chosen.map(|name| case(name, &file(name), None, limit)).collect();
        let mean = results.iter().map(|figures| figures.early).sum::<f64>() / results.len() as f64;
        println!("after 50 ms: {mean:.4} on average");
    }
    if wants("tensors") {
        for (name, limit) in
            [("resnet50", 5.0), ("G_1", 5.0), ("pangu_2.6B", 5.0), ("S_1", 5.0), ("Y_1", 10.0)]
        {
            case(name, &file(&format!("tensors/{name}.csv.gz")), None, limit);
        }
    }
    let seed = number("SEED", 1.0) as u64;
    if wants("guillotine") {
        for (count, limit) in [(300, 5.0), (1000, 20.0), (10_000, 30.0), (100_000, 60.0)] {
            for (time, memory) in [(1i64 << 40, 1u64 << 30), (count as i64, 1 << 20)] {
                let problem = generate::guillotine(count, time, memory, seed);
                case(&format!("guillotine {count}, time {time}"), &problem, None, number("LIMIT", limit));
            }
        }
    }
    if wants("heavy") {
        for shortest in [100.0, 1000.0] {
            let problem = generate::heavy_tailed(100_000, 1.5, shortest, seed);
            case(&format!("heavy-tailed 100000, {shortest}"), &problem, None, number("LIMIT", 20.0));
        }
    }
    if asked.iter().any(|asked| asked == "million") {
        let problem = generate::heavy_tailed(1_000_000, 1.5, 100.0, seed);
        case("heavy-tailed 1000000, 100", &problem, None, number("LIMIT", 60.0));
    }
    if wants("baselines") {
        for baseline in Baseline::ALL {
            let ratio = |name: &String| {
                let problem = file(name);
                baseline.plan(&problem).peak.share_of(bound::lower_bound(&problem))
            };
            let ratios: Vec<f64> = set.iter().map(ratio).collect();
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            println!("{:32} {mean:.4} on average over the challenging set", baseline.name());
        }
    }
    if wants("replan") {
        let problem = generate::heavy_tailed(100_000, 1.5, 1000.0, seed);
        let options = Options { effort: Some(1), ..Options::default() };
        if let Ok(solution) = solve(&problem, &options, &mut Watch::default()) {
            replans(&problem, &solution.plan);
        }
    }
    if wants("training") {
        let problem = generate::training(100_000, 4000, seed);
        case("training 100000", &problem, None, number("LIMIT", 5.0));
    }
}

struct Figures {
    cpu: f64,
    early: f64,
}

/// Solves with a limit in seconds of CPU; `capacity` is in megabytes of 2^20 bytes, or, negative, a factor of the bound.
fn case(name: &str, problem: &Problem, capacity: Option<f64>, limit: f64) -> Figures {
    let floor = bound::lower_bound(problem);
    let capacity = capacity
        .map(|value| if value > 0.0 { value * 1_048_576.0 } else { -value * floor.0 as f64 })
        .map(|bytes| Bytes(bytes as u64));
    let options =
        Options { capacity, seed: number("SEED", 1.0) as u64, tricks: tricks(), ..Options::default() };
    let cancel = AtomicBool::new(false);
    let finished = AtomicBool::new(false);
    let begin = cpu_seconds();
    let (mut early, mut first, mut last) = (f64::NAN, f64::NAN, 0.0);
    let verbose = std::env::var("VERBOSE").is_ok();
    let solution = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if cpu_seconds() - begin > limit {
                    cancel.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut on_better = |progress: &Progress<'_>| {
            let (ratio, now) = (progress.plan.peak.share_of(floor), cpu_seconds() - begin);
            if verbose {
                println!("    {ratio:.5} at {now:.2} s, effort {}", progress.effort);
            }
            if now <= 0.05 {
                early = ratio;
            }
            first = if f64::is_nan(first) { now } else { first };
            last = now;
        };
        let mut watch = Watch { cancel: Some(&cancel), on_better: Some(&mut on_better) };
        let solution = solve(problem, &options, &mut watch);
        finished.store(true, Ordering::Relaxed);
        solution
    });
    let cpu = cpu_seconds() - begin;
    let solution = match solution {
        Ok(solution) => solution,
        Err(error) => {
            println!("{name:32} {error}");
            return Figures { cpu, early };
        }
    };
    let verdict = match validate(problem, &solution.plan, capacity.filter(|_| solution.fits == Some(true))) {
        Err(invalid) => format!("INVALID: {invalid}"),
        Ok(()) if solution.fits == Some(true) => "fits".to_owned(),
        Ok(()) if solution.proven_optimal() => "optimal".to_owned(),
        Ok(()) => format!("{} over {}", solution.plan.peak.0, solution.lower_bound.0),
    };
    let ratio = solution.plan.peak.share_of(floor);
    let count = problem.len();
    println!("{name:32} {count:8} {ratio:9.5} {early:9.4} {first:9.3} {last:9.3} {cpu:9.3} {verdict}");
    Figures { cpu, early }
}

/// One buffer in a hundred thousand changes its size: how long, how many moved, how much higher.
fn replans(problem: &Problem, old: &Plan) {
    let (mut slowest, mut most, mut worst) = (0f64, 0, 0f64);
    for step in 0..50usize {
        let mut buffers = problem.buffers().to_vec();
        let at = step * 1999 % buffers.len();
        buffers[at].size = Bytes(buffers[at].size.0 * 3 / 2 + 4096);
        let Ok(new) = Problem::new(buffers) else { continue };
        let begin = cpu_seconds();
        let result = replan(&new, &carry_over(problem, old, &new));
        slowest = slowest.max(cpu_seconds() - begin);
        most = most.max(result.moved.len() + result.placed.len());
        worst = worst.max(result.plan.peak.share_of(old.peak));
        if let Err(invalid) = validate(&new, &result.plan, None) {
            println!("INVALID: {invalid}");
        }
    }
    println!(
        "replan, one of 100000 changed: {slowest:.4} s at most, {most} moved at most, peak {worst:.5} of the old"
    );
}

fn tricks() -> Tricks {
    let mut tricks = Tricks::default();
    for name in std::env::var("OFF").unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
        if !tricks.turn_off(name) {
            println!("no trick is named {name:?}; they are {}", Tricks::NAMES.join(", "));
        }
    }
    tricks
}

fn number(variable: &str, otherwise: f64) -> f64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

fn file(name: &str) -> Problem {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/planner").join(name);
    let packed = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("a text file");
    csv::read(&text, csv::OffsetColumn::Fixed).expect("a valid problem")
}

/// User and system time of this process so far: of the main thread to the nanosecond, or, where others worked too, of
/// all in ticks of 10 ms; 0 where there is no /proc.
fn cpu_seconds() -> f64 {
    let main = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let main =
        main.split_whitespace().next().and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0) / 1e9;
    let all = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        all.split_whitespace().skip(13).take(2).filter_map(|field| field.parse().ok()).collect();
    main.max(fields.iter().sum::<f64>() / 100.0)
}
