//! `gapless.estimate()` against what an H200 measured: 48 cells of 16 modules, 12 of them set aside before anything was
//! tuned, and then one cell with its imports. Needs the model libraries, in an environment of its own.

use crate::shell::{self, command};
use crate::{test_python, tools};
use anyhow::Result;

/// What the cells were measured with.
const PACKAGES: [&str; 3] = ["torch==2.11.0", "torchvision==0.26.0", "transformers==5.17.0"];

pub(crate) fn run() -> Result<()> {
    let folder = shell::target().join("estimate");
    let card = folder.join("card");
    test_python::build_card(&card)?;
    let python = tools::environment(&folder.join("bench-venv"), &PACKAGES, &PACKAGES.join(" "))?;
    for (title, args) in [
        ("set aside", &["--set", "held"][..]),
        ("all cells", &["--set", "all"]),
        ("one cell with its imports", &["--only", "unet", "--cold"]),
    ] {
        println!("\n# estimated against measured on an H200: {title}");
        let mut cells = command(".", &python, &[&["torch-bench/estimate/cells.py"], args].concat());
        cells.env("PYTHONPATH", "python:torch-bench/estimate").env("GAPLESS_CARD_LIBRARIES", &card);
        shell::run(cells)?;
    }
    Ok(())
}
