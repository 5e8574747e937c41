//! Chores of the project: `cargo xtask test`, `cargo xtask test-torch`, `cargo xtask dist`, `cargo xtask bench`.

mod bench;
mod dist;
mod parts;
mod shell;
mod skips;
mod test;
mod test_fleet;
mod test_fleet_ray;
mod test_python;
mod test_rust;
mod test_torch;
mod tools;
mod torch_table;
mod wheels;

use anyhow::{Result, bail};

const HELP: &str = "\
cargo xtask test            install what the tests need, then run those of Rust and of Python without torch; what it
                            leaves to ci is listed at its end
cargo xtask test rust       only one part: all Rust tests (also: quick, python, lint, builds, web)
cargo xtask test-torch      the allocator's model against stock libraries of torch (versions and options may follow)
cargo xtask test-torch python   only the Python package on stock torch (`--torch 2.15.0`, arguments for pytest)
cargo xtask test-fleet      the fleet's parts on real schedulers: slurm, ray (need root; install their packages),
                            kubernetes (builds Debian's source package once; options may follow)
cargo xtask torch-table VERSION   what the overlay has to know of a release of torch, from its wheel
cargo xtask dist            what a release holds, in target/dist: built, installed into an empty environment, used
cargo xtask dist try WHEEL  only check and use a wheel
cargo xtask ci              lint, rust, python, builds, web, test-torch and dist, with the time of each part
cargo xtask bench           all benchmarks (also by name: build, report, page, plan, pool, ...)
cargo xtask page            rebuild the report's page from web/src
cargo xtask pictures        take the pictures in docs/images again";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] | ["help", ..] | ["--help" | "-h", ..] | [_, "help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        ["test", parts @ ..] => test::run(parts),
        ["test-torch", args @ ..] => test_torch::run(args),
        ["test-fleet", names @ ..] => test_fleet::run(names),
        ["torch-table", args @ ..] => torch_table::run(args),
        ["dist"] => dist::run(),
        ["dist", "try", wheel] => dist::try_wheel(wheel),
        ["ci"] => ci(),
        ["bench", names @ ..] => bench::run(names),
        ["page"] => test::build_page(),
        ["pictures"] => test::pictures(),
        other => bail!("no chore is called {other:?}\n{HELP}"),
    }
}

/// The checks that must pass before a change lands.
fn ci() -> Result<()> {
    let mut parts = parts::Parts::default();
    // Gigabytes, which come while the Rust tests are built.
    let downloads = std::thread::spawn(test_torch::download);
    test::add(&mut parts);
    // If it failed, the part that needs the files tries again and tells why.
    let _ = downloads.join();
    test_torch::add(&mut parts, &[]);
    dist::add(&mut parts);
    parts.close()
}
