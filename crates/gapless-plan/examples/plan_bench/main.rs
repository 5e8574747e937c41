//! Measures the planner on the kinds of instances that its targets speak of, one line each: our figures, the wanted
//! ones, those of peers.
//!
//! `cargo run --release -p gapless-plan --example plan_bench --
//! [challenging|cliff|minimise|tensors|guillotine|heavy|million|training|replan|baselines|FILE.csv]...` Limits count
//! seconds of CPU of this process, not of the clock on the wall, so that a busy machine does not change the figures.
//! `OFF=trick,trick` turns tricks off, `SEED=n` changes the seed, `LIMIT=s` the limit, `ONLY=J` picks one of the set to
//! minimise, `CASE=100000, coarse` generated cases by a part of their name, `VERBOSE=1` prints every better plan.
//! `PEERS=FILE` names figures of other planners on the challenging set: lines of a letter, a tab and what to print.

mod baseline;

use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baseline::Baseline;
use gapless_plan::{
    Options, Plan, Problem, Progress, Tricks, Watch, bound, carry_over, replan, solve, validate,
};
use gapless_problems::csv;
use gapless_problems::generate::{self, Layers};
use gapless_trace::Bytes;

const LETTERS: &str = "ABCDEFGHIJK";
/// Seconds of CPU that MiniMalloc, built with -O3, took for A to K on a machine of the same kind: quoted, not run here.
const MINIMALLOC: [f64; 11] = [9.1, 6.2, 1.5, 7.9, 7.4, 9.6, 2.1, 3.0, 5.0, 2.2, 1.2];
/// Above this the greedy planners are not run beside ours: they would take longer than all else.
const BASELINE_LIMIT: usize = 100_000;
/// Above this, of the greedy planners only two are run; hill-climbing packs a thousand times.
const ALL_BASELINES_LIMIT: usize = 1000;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    println!(
        "Peers in [brackets] are re-implementations of published planners; \"quoted\" figures were not run here."
    );
    line("case", "n", "ours", "CPU s", "MB", "wanted", "", "peers");
    for path in asked.iter().filter(|asked| asked.ends_with(".csv")) {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        match csv::read_text(&text, csv::OffsetColumn::Fixed) {
            Ok(problem) => drop(case(path, &problem, Question::Minimise, 10.0, &Wanted::default(), "")),
            Err(error) => println!("{path}: {error}"),
        }
    }
    if wants("challenging") {
        challenging();
    }
    if wants("cliff") {
        let wanted = Wanted { fits: true, cpu: Some(1.0), ..Wanted::default() };
        for factor in [1.0, 1.02, 1.05, 1.10, 1.15, 1.20] {
            let quoted = "MiniMalloc 0.02 s to over 57 s (quoted)";
            case(
                &format!("K at {factor:.2} of its bound"),
                &set('K'),
                Question::Times(factor),
                10.0,
                &wanted,
                quoted,
            );
        }
    }
    if wants("minimise") {
        minimise();
    }
    if wants("tensors") {
        let tensors = [
            ("resnet50", 5.0, 1.0, ""),
            ("G_1", 5.0, f64::NAN, ""),
            ("pangu_2.6B", 5.0, 1.01, "idealloc 1.033 (quoted)"),
            ("S_1", 5.0, 1.01, "idealloc 1.025 (quoted)"),
            ("Y_1", 10.0, 1.001, "idealloc 1.0035 in 26 s, 3.5 GB (quoted)"),
        ];
        for (name, limit, ratio, peers) in tensors {
            let ratio = Some(ratio).filter(|ratio| !ratio.is_nan());
            let wanted = Wanted { ratio, memory: Some(500.0), ..Wanted::default() };
            let problem = file(&format!("tensors/{name}.csv.gz"));
            case(name, &problem, Question::Minimise, limit, &wanted, peers);
        }
    }
    let seed = number("SEED", 1.0) as u64;
    if wants("guillotine") {
        for (count, limit, ratio) in
            [(300, 5.0, 1.0), (1000, 20.0, 1.05), (10_000, 30.0, 1.12), (100_000, 60.0, 1.25)]
        {
            // Times all apart, and times that many buffers share.
            for (kind, time, memory) in [("fine", 1i64 << 40, 1u64 << 30), ("coarse", count as i64, 1 << 20)]
            {
                let name = format!("guillotine {count}, {kind} times");
                if !picked(&name) {
                    continue;
                }
                let problem = generate::guillotine(count, time, memory, seed);
                case(&name, &problem, Question::Minimise, limit, &Wanted::ratio(ratio), "");
            }
        }
    }
    if wants("heavy") {
        for shortest in [100.0, 1000.0] {
            let name = format!("heavy-tailed 100000, from {shortest}");
            if !picked(&name) {
                continue;
            }
            let problem = generate::heavy_tailed(100_000, 1.5, shortest, seed);
            let quoted = "idealloc 1.028 (quoted)";
            case(&name, &problem, Question::Minimise, 20.0, &Wanted::ratio(1.01), quoted);
        }
    }
    if asked.iter().any(|asked| asked == "million") {
        let problem = generate::heavy_tailed(1_000_000, 1.5, 100.0, seed);
        let wanted =
            Wanted { ratio: Some(1.012), first: Some(5.0), memory: Some(2147.0), ..Wanted::default() };
        let quoted = "idealloc 1.012 in 98 s, 5.9 GB (quoted)";
        case("heavy-tailed 1000000, from 100", &problem, Question::Minimise, 60.0, &wanted, quoted);
    }
    if wants("training") {
        for (kind, sizes) in
            [("alike", Layers::Alike), ("apart", Layers::Unlike), ("apart each step", Layers::UnlikeEachStep)]
        {
            let name = format!("training 100000, {kind}");
            if !picked(&name) {
                continue;
            }
            let problem = generate::training_of(100_000, 4000, sizes, seed);
            case(&name, &problem, Question::Minimise, 5.0, &Wanted::ratio(1.0002), "");
        }
    }
    if wants("replan") {
        let problem = generate::heavy_tailed(100_000, 1.5, 1000.0, seed);
        let options = Options { effort: Some(1), ..Options::default() };
        if let Ok(solution) = solve(&problem, &options, &mut Watch::default()) {
            replans(&problem, &solution.plan);
        }
    }
    if wants("baselines") {
        for baseline in Baseline::ALL {
            let begin = cpu_seconds();
            let ratio = |letter: char| {
                let problem = set(letter);
                baseline.plan(&problem).peak.share_of(bound::lower_bound(&problem))
            };
            let mean = LETTERS.chars().map(ratio).sum::<f64>() / LETTERS.len() as f64;
            let cpu = format!("{:.3}", cpu_seconds() - begin);
            line(
                &format!("[{}], A to K", baseline.name()),
                "",
                &format!("{mean:.4}"),
                &cpu,
                "",
                "",
                "",
                "mean ratio",
            );
        }
    }
}

/// A to K within 1,048,576 bytes.
fn challenging() {
    let wanted = Wanted { fits: true, ..Wanted::default() };
    let others =
        std::env::var("PEERS").ok().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let mut total = 0.0;
    for (letter, minimalloc) in LETTERS.chars().zip(MINIMALLOC) {
        let other =
            others.lines().find_map(|line| line.strip_prefix(letter)?.strip_prefix('\t')).unwrap_or_default();
        let peers =
            format!("{other}{}MiniMalloc {minimalloc} s (quoted)", if other.is_empty() { "" } else { ", " });
        let question = Question::Capacity(Bytes(1_048_576));
        total += case(&format!("{letter} at 1048576"), &set(letter), question, 60.0, &wanted, &peers).cpu;
    }
    let met = if total <= 1.8 { "met" } else { "MISSED" };
    let quoted = format!("MiniMalloc {:.0} s (quoted)", MINIMALLOC.iter().sum::<f64>());
    line(
        "A to K at 1048576, in all",
        "",
        "",
        &format!("{total:.3}"),
        "",
        "at most 1.8 s, aim 0.2",
        met,
        &quoted,
    );
}

/// A to K as low as possible, and how low after 50 ms.
fn minimise() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let chosen = LETTERS.chars().filter(|letter| only.is_empty() || only.contains(*letter));
    let mut early = Vec::new();
    for letter in chosen {
        // D and J have no target but to be as low as can be.
        let ratio = Some(1.0).filter(|_| !"DJ".contains(letter));
        let wanted = Wanted { ratio, ..Wanted::default() };
        early.push(
            case(&format!("{letter}, minimised"), &set(letter), Question::Minimise, 60.0, &wanted, "").early,
        );
    }
    let mean = early.iter().sum::<f64>() / early.len() as f64;
    let met = if mean <= 1.10 { "met" } else { "MISSED" };
    let quoted = "idealloc 1.32 (quoted)";
    line("mean after 50 ms", "", &format!("{mean:.4}"), "", "", "at most 1.10", met, quoted);
}

#[derive(Clone, Copy)]
enum Question {
    Minimise,
    Capacity(Bytes),
    /// A capacity of so many times the lower bound.
    Times(f64),
}

/// The target of a case; each figure may be missing.
#[derive(Default)]
struct Wanted {
    fits: bool,
    ratio: Option<f64>,
    /// Seconds of CPU in all.
    cpu: Option<f64>,
    /// Seconds of CPU to the first plan.
    first: Option<f64>,
    /// Megabytes resident at most.
    memory: Option<f64>,
}

impl Wanted {
    fn ratio(ratio: f64) -> Wanted {
        Wanted { ratio: Some(ratio), ..Wanted::default() }
    }

    fn text(&self, limit: f64) -> String {
        let mut words = Vec::new();
        if self.fits {
            words.push("fits".to_owned());
        }
        words.extend(self.ratio.map(|ratio| format!("{ratio} in {limit} s")));
        words.extend(self.cpu.map(|cpu| format!("in {cpu} s")));
        words.extend(self.first.map(|first| format!("first in {first} s")));
        words.extend(self.memory.map(|memory| format!("{memory} MB")));
        words.join(", ")
    }

    fn met(&self, figures: &Figures) -> bool {
        let within = |most: Option<f64>, value: f64| most.is_none_or(|most| value <= most);
        (!self.fits || figures.fits)
            && within(self.ratio, figures.ratio)
            && within(self.cpu, figures.cpu)
            && within(self.first, figures.first)
            && within(self.memory, figures.memory)
    }
}

struct Figures {
    cpu: f64,
    early: f64,
    first: f64,
    ratio: f64,
    memory: f64,
    fits: bool,
}

/// Solves with a limit in seconds of CPU and prints the line.
fn case(
    name: &str,
    problem: &Problem,
    question: Question,
    limit: f64,
    wanted: &Wanted,
    peers: &str,
) -> Figures {
    let asked = wanted.text(limit);
    let limit = number("LIMIT", limit);
    let floor = bound::lower_bound(problem);
    let capacity = match question {
        Question::Minimise => None,
        Question::Capacity(bytes) => Some(bytes),
        Question::Times(factor) => Some(Bytes((factor * floor.0 as f64) as u64)),
    };
    let options =
        Options { capacity, seed: number("SEED", 1.0) as u64, tricks: tricks(), ..Options::default() };
    let cancel = AtomicBool::new(false);
    let finished = AtomicBool::new(false);
    // The kernel forgets the largest resident size so far; if it cannot, the figure is that of the whole run.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let begin = cpu_seconds();
    let (mut early, mut first) = (f64::NAN, f64::NAN);
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
        };
        let mut watch = Watch { cancel: Some(&cancel), on_better: Some(&mut on_better) };
        let solution = solve(problem, &options, &mut watch);
        finished.store(true, Ordering::Relaxed);
        solution
    });
    let cpu = cpu_seconds() - begin;
    let memory = peak_resident_mb();
    let solution = solution.unwrap_or_else(|error| panic!("{name}: {error}"));
    let fits = solution.fits == Some(true);
    if let Err(invalid) = validate(problem, &solution.plan, capacity.filter(|_| fits)) {
        panic!("{name}: the plan is INVALID: {invalid}");
    }
    let ratio = solution.plan.peak.share_of(floor);
    let figures = Figures { cpu, early, first, ratio, memory, fits };
    let ours = match question {
        Question::Minimise if solution.proven_optimal() => format!("{ratio:.5}, optimal"),
        Question::Minimise => format!("{ratio:.5}"),
        _ if fits => "fits".to_owned(),
        _ => "no plan".to_owned(),
    };
    let met = match wanted.met(&figures) {
        _ if asked.is_empty() => "",
        true => "met",
        false => "MISSED",
    };
    let mut beside: Vec<String> = vec![peers.to_owned()];
    if wanted.first.is_some() {
        beside.push(format!("(our first plan: {first:.1} s)"));
    }
    if matches!(question, Question::Minimise) {
        beside.extend(greedy(problem, floor));
    }
    beside.retain(|text| !text.is_empty());
    line(
        name,
        &problem.len().to_string(),
        &ours,
        &format!("{cpu:.3}"),
        &format!("{memory:.0}"),
        &asked,
        met,
        &beside.join(", "),
    );
    figures
}

/// The ratios that the re-implemented planners reach.
fn greedy(problem: &Problem, floor: Bytes) -> Vec<String> {
    let few = [Baseline::XlaBestFit, Baseline::TflmGreedy];
    let chosen: &[Baseline] = match problem.len() {
        count if count <= ALL_BASELINES_LIMIT => &Baseline::ALL,
        count if count <= BASELINE_LIMIT => &few,
        _ => &[],
    };
    let ratios = chosen.iter().map(|baseline| (baseline, baseline.plan(problem).peak.share_of(floor)));
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_by(|a, b| a.1.total_cmp(&b.1));
    // The best, and XLA's, which stands on every line.
    let xla = |baseline: &Baseline| *baseline == Baseline::XlaBestFit;
    let shown = ratios.iter().enumerate().filter(|(rank, (baseline, _))| *rank == 0 || xla(baseline));
    shown.map(|(_, (baseline, ratio))| format!("[{}] {ratio:.4}", baseline.name())).collect()
}

#[expect(clippy::too_many_arguments, reason = "the columns of the table")]
fn line(case: &str, n: &str, ours: &str, cpu: &str, memory: &str, wanted: &str, met: &str, peers: &str) {
    let row = format!("{case:33} {n:>8} {ours:>16} {cpu:>8} {memory:>5}  {wanted:34} {met:6}  {peers}");
    println!("{}", row.trim_end());
}

/// One buffer in a hundred thousand changes its size: time, buffers moved, rise of the peak.
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
            panic!("replan: the plan is INVALID: {invalid}");
        }
    }
    let met = if slowest <= 0.05 && most * 100 < problem.len() { "met" } else { "MISSED" };
    let ours = format!("{most} moved");
    let peak = format!("peak at most {worst:.5} of the old; 50 changes, the worst of each");
    let (count, cpu) = (problem.len().to_string(), format!("{slowest:.4}"));
    line("replan, one buffer changed", &count, &ours, &cpu, "", "0.05 s, under 1 % moved", met, &peak);
}

/// True if a generated case is among those that `CASE` names by a part of their name.
fn picked(name: &str) -> bool {
    std::env::var("CASE").map_or(true, |part| name.contains(&part))
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

/// An instance of the challenging set.
fn set(letter: char) -> Problem {
    file(&format!("challenging/{letter}.1048576.csv.gz"))
}

fn file(name: &str) -> Problem {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/planner").join(name);
    let packed = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("a text file");
    csv::read_text(&text, csv::OffsetColumn::Fixed).expect("a valid problem")
}

/// User and system time of this process so far: of the main thread to the nanosecond, or, if others did real work too,
/// of all in ticks of 10 ms; 0 if there is no /proc.
fn cpu_seconds() -> f64 {
    let main = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let main =
        main.split_whitespace().next().and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0) / 1e9;
    let all = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        all.split_whitespace().skip(13).take(2).filter_map(|field| field.parse().ok()).collect();
    let all = fields.iter().sum::<f64>() / 100.0;
    // The thread that watches the limit takes a hundredth; its ticks must not blur figures of milliseconds.
    if all > 1.2 * main + 0.2 { all } else { main }
}

/// The largest resident size since it was last cleared, in millions of bytes; NaN if there is no /proc.
fn peak_resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|text| text.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
}
