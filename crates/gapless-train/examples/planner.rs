//! The planner alone, with the flags that the Python package uses of `gapless fit-into`: for a machine that has no
//! build of the command. `planner fit-into step.json --budget BYTES --format json --time-limit 3000ms`

use gapless_train::{Options, Step, frontier, solve, told};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1));
    let path = words.get(1).ok_or("planner fit-into STEP.json --budget BYTES")?;
    let step = Step::read(&std::fs::read(path)?)?;
    let budget = after("--budget").map_or(Ok(step.peak()), |text| text.parse())?;
    let limit =
        after("--time-limit").and_then(|text| text.trim_end_matches("ms").parse().ok()).unwrap_or(3000);
    let options = Options { time_limit: Duration::from_millis(limit), ..Options::default() };
    let points = after("--frontier").map_or(Ok(0), |text| text.parse())?;
    let plans = if points > 0 { frontier(&step, points, &options) } else { Vec::new() };
    let plan = solve(&step, budget, &options);
    serde_json::to_writer(std::io::stdout(), &told(&step, budget, &plan, &plans))?;
    Ok(())
}
