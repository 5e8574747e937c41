//! `cargo xtask test-fleet ray`: gapless.ray on a real Ray from PyPI, eight raylets on this machine.

use crate::shell::{self, command};
use crate::tools;
use anyhow::{Result, bail};

/// The release of the figures in docs/fleet.md.
const RAY: &str = "ray==2.60.0";

pub(crate) fn run() -> Result<()> {
    if !shell::has("unshare") || shell::output(command(".", "ip", &["-V"])).is_err() {
        bail!("`unshare` or `ip` is missing: install Debian's util-linux and iproute2");
    }
    let folder = shell::target().join("fleet-test/ray");
    let python = tools::environment(&folder, &[RAY], "ray")?;
    shell::run(command(".", "cargo", &["build", "--quiet", "--package", "gapless", "--locked"]))?;
    // Ray's servers listen on the machine's own address. In its own network namespace, that is only loopback.
    let script = "ip link set lo up && exec \"$0\" fleet-test/on_ray.py";
    let mut test = command(".", "unshare", &["--net", "sh", "-c", script, &python]);
    test.env("GAPLESS_PROGRAM", shell::target().join("debug/gapless"));
    shell::run(test)
}
