//! `gapless.estimate()` against measurements on an H200: 48 cells of 16 modules, 12 of them set aside before any
//! tuning, one cell with its imports, and the modules of torch-bench/estimate/zoo, the half that was set aside first.
//! Needs the model libraries, in an environment of its own.

use crate::shell::{self, command};
use crate::{test_python, tools};
use anyhow::Result;

/// The packages with which the cells were measured.
const PACKAGES: [&str; 3] = ["torch==2.11.0", "torchvision==0.26.0", "transformers==5.17.0"];

pub(crate) fn run() -> Result<()> {
    let folder = shell::target().join("estimate");
    let card = folder.join("card");
    test_python::build_card(&card)?;
    let python = tools::environment(&folder.join("bench-venv"), &PACKAGES, &PACKAGES.join(" "))?;
    let written = folder.join("zoo.json").display().to_string();
    for (title, program, args) in [
        ("set aside", "cells.py", &["--set", "held"][..]),
        ("all cells", "cells.py", &["--set", "all"]),
        ("one cell with its imports", "cells.py", &["--only", "unet", "--cold"]),
        ("the zoo, set aside", "estimates.py", &["--set", "held", "--out", &written]),
        ("the zoo, tuned", "estimates.py", &["--set", "tuned", "--out", &written]),
    ] {
        println!("\n# estimated against measured on an H200: {title}");
        let program = format!("torch-bench/estimate/{program}");
        let mut cells = command(".", &python, &[&[program.as_str()], args].concat());
        cells.env("PYTHONPATH", "python:torch-bench/estimate").env("GAPLESS_CARD_LIBRARIES", &card);
        shell::run(cells)?;
    }
    Ok(())
}
