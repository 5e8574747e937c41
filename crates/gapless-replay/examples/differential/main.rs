//! Our model of PyTorch's caching allocator against the real one: random programs, every answer compared.
//!
//! `cargo xtask test-torch` builds the driver and calls this; torch-bench/README.md describes the driver.
//!
//! ```text
//! differential --driver PATH --version 2.11 [--ops 1000000] [--length 20000] [--seed 1] [--config NAME]
//!              [--itself] [--history] [--against PATH] [--write FILE]
//! ```
//!
//! `--itself` compares the library with itself instead, which proves the bench and not the model; `--against` compares
//! two versions of it, which shows what changed between them. `--write` only writes the first program of the first
//! configuration chosen, for a driver run by hand. Exit 0: no difference, 1: one was found and is printed, 2: the
//! comparison could not be made.

mod compare;
mod configs;
mod driver;
mod generate;
mod model;
mod ops;
mod random;
mod shrink;
mod subject;

use compare::{Bench, Difference, Outcome, Tally};
use configs::Config;
use generate::Plan;
use ops::Op;
use random::Random;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Operations of a shrunk program that are printed.
const SHOWN: usize = 60;

struct Options {
    driver: PathBuf,
    minor: u32,
    ops: u64,
    length: usize,
    seed: u64,
    config: Option<String>,
    itself: bool,
    history: bool,
    write: Option<PathBuf>,
    against: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        driver: PathBuf::new(),
        minor: 0,
        ops: 1_000_000,
        length: 20_000,
        seed: 1,
        config: None,
        itself: false,
        history: false,
        write: None,
        against: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: String| {
            text.replace('_', "")
                .parse::<u64>()
                .map_err(|_| format!("invalid number {text:?}: use digits, such as 1_000_000"))
        };
        match arg.as_str() {
            "--driver" => options.driver = value()?.into(),
            "--version" => {
                let text = value()?;
                let minor = text.strip_prefix("2.").and_then(|rest| rest.split('.').next()?.parse().ok());
                options.minor =
                    minor.ok_or_else(|| format!("invalid release of torch {text:?}: write 2.11"))?;
            }
            "--ops" => options.ops = number(value()?)?,
            "--length" => options.length = number(value()?)? as usize,
            "--seed" => options.seed = number(value()?)?,
            "--config" => options.config = Some(value()?),
            "--itself" => options.itself = true,
            "--against" => options.against = Some(value()?.into()),
            "--write" => options.write = Some(value()?.into()),
            "--history" => options.history = true,
            _ => return Err(format!("unknown option {arg:?}: the head of this example lists them")),
        }
    }
    if options.driver.as_os_str().is_empty() || options.minor == 0 {
        return Err("--driver PATH and --version 2.x are needed".to_owned());
    }
    if let Some(name) = &options.config
        && !configs::ALL.iter().any(|config| config.name == name)
    {
        let names: Vec<&str> = configs::ALL.iter().map(|config| config.name).collect();
        return Err(format!("no configuration is called {name:?}: there are {}", names.join(", ")));
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options().and_then(|options| compare_all(&options).map_err(|e| e.to_string())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("differential: {message}");
            ExitCode::from(2)
        }
    }
}

/// True if all programs of all configurations agree.
fn compare_all(options: &Options) -> std::io::Result<bool> {
    let itself =
        options.itself || options.against.is_some() || model::open(options.minor, "", 1 << 30).is_none();
    if itself && !options.itself && options.against.is_none() {
        eprintln!("differential: THERE IS NO MODEL YET: the real library is compared with itself");
    }
    let wanted = |config: &&Config| {
        config.since <= options.minor && options.config.as_deref().is_none_or(|name| name == config.name)
    };
    let chosen: Vec<&Config> = configs::ALL.iter().filter(wanted).collect();
    let share = options.ops / (chosen.len() as u64).max(1);
    let (begin, mut total) = (Instant::now(), Tally::default());
    let heads = ["configuration", "ops", "ooms", "retries", "given back", "waits", "exact", "ops/s"];
    let [name, ops, ooms, retries, given_back, waits, exact, rate] = heads;
    println!("{name:<24} {ops:>9} {ooms:>7} {retries:>8} {given_back:>10} {waits:>8} {exact:>7} {rate:>9}");
    for config in &chosen {
        let (start, mut tally) = (Instant::now(), Tally::default());
        let mut seed = options.seed;
        while tally.operations < share {
            let length = options.length.min((share - tally.operations) as usize);
            let case = Case::new(options, config, seed, length, itself);
            if let Some(path) = &options.write {
                return case.write(path);
            }
            let (done, difference) = case.run(&case.program).map_err(|e| case.name(e))?;
            tally.add(done);
            if let Some(difference) = difference {
                case.tell(&difference);
                return Ok(false);
            }
            seed += 1;
        }
        print_row(config.name, tally, start);
        total.add(tally);
    }
    print_row("all", total, begin);
    Ok(true)
}

fn print_row(name: &str, tally: Tally, since: Instant) {
    let rate = tally.operations as f64 / since.elapsed().as_secs_f64();
    let Tally { operations, ooms, retries, given_back, waits, exact } = tally;
    println!(
        "{name:<24} {operations:>9} {ooms:>7} {retries:>8} {given_back:>10} {waits:>8} {exact:>7} {rate:>9.0}"
    );
}

/// One program under one configuration.
struct Case<'a> {
    options: &'a Options,
    config: &'a Config,
    seed: u64,
    length: usize,
    capacity: u64,
    itself: bool,
    program: Vec<Op>,
}

impl<'a> Case<'a> {
    fn new(options: &'a Options, config: &'a Config, seed: u64, length: usize, itself: bool) -> Case<'a> {
        // Configurations get programs of their own.
        let mixed = config
            .name
            .bytes()
            .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        // Any number of bytes: caps and fractions are computed from it.
        let (low, high) = config.capacity;
        let capacity = Random::new(mixed).between(low, high);
        let expandable = config.settings.contains("expandable_segments:True");
        let plan = Plan {
            seed: mixed,
            length,
            capacity,
            minor: options.minor,
            fraction: config.fraction,
            expandable,
            max_split: config.settings.contains("max_split_size_mb"),
            classes: config.settings.contains("by_class"),
        };
        Case { options, config, seed, length, capacity, itself, program: generate::program(plan) }
    }

    fn run(&self, program: &[Op]) -> Outcome {
        let bench = Bench {
            driver: &self.options.driver,
            settings: self.config.settings,
            capacity: self.capacity,
            minor: self.options.minor,
            history: self.options.history,
        };
        match model::open(self.options.minor, self.config.settings, self.capacity) {
            Some(mut model) if !self.itself => compare::with_model(bench, program, &mut *model),
            _ => {
                compare::with_library(bench, self.options.against.as_deref().unwrap_or(bench.driver), program)
            }
        }
    }

    fn write(&self, path: &Path) -> std::io::Result<bool> {
        let mut bytes = Vec::new();
        self.program.iter().for_each(|op| op.encode(&mut bytes));
        std::fs::write(path, bytes)?;
        let Config { settings, .. } = self.config;
        println!(
            "PYTORCH_CUDA_ALLOC_CONF={settings} {} {} < {}",
            self.options.driver.display(),
            self.capacity,
            path.display()
        );
        Ok(true)
    }

    fn name(&self, error: std::io::Error) -> std::io::Error {
        std::io::Error::other(format!(
            "{} seed {} length {}: {error}",
            self.config.name, self.seed, self.length
        ))
    }

    /// Prints a difference: its values, the operations before it, how to see it again, and the shortest program that
    /// shows it.
    fn tell(&self, difference: &Difference) {
        let Difference { at, what } = difference;
        let Config { name, settings, .. } = self.config;
        println!(
            "\nDIFFERENCE under {name} ({settings:?}, a card of {} bytes) at operation {at}",
            self.capacity
        );
        println!("{what}\n\nthe operations before it:");
        let first = at.saturating_sub(24);
        for (i, op) in self.program[first..=*at].iter().enumerate() {
            println!("{:>8}  {op}", first + i);
        }
        let (version, seed, length) = (self.options.minor, self.seed, self.length);
        println!(
            "\nto repeat: --version 2.{version} --config {name} --seed {seed} --length {length} --ops {length}"
        );
        let fails = |program: &[Op]| matches!(self.run(program), Ok((_, Some(_))));
        let short = shrink::shrink(self.program[..=*at].to_vec(), fails);
        println!("\nthe shortest program found that shows a difference ({} operations):", short.len());
        for op in short.iter().take(SHOWN) {
            println!("          {op}");
        }
        if short.len() > SHOWN {
            println!("          ... and {} more", short.len() - SHOWN);
        }
        if let Ok((_, Some(last))) = self.run(&short) {
            println!("{}", last.what);
        }
    }
}
