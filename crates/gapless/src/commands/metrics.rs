//! `gapless metrics`: the figures of `gapless top` for Prometheus: served over HTTP, or written once for
//! node_exporter's textfile collector.

pub(super) mod exposition;
pub(super) mod server;

use crate::Answer;
use crate::cli::live::MetricsArgs;
use crate::failure::Failure;
use crate::machine::collect::collect;
use crate::output;
use anyhow::Result;
use std::net::TcpListener;

pub(crate) fn run(args: &MetricsArgs) -> Result<Answer> {
    // A first reading fails at the start if it can fail, not at the first scrape.
    let text = exposition::text(&collect(None)?);
    if args.once || args.output.is_some() {
        output::write_to(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))?;
        return Ok(Answer::Yes);
    }
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        let what = format!("{} cannot be served: {error}", args.listen);
        Failure::new(what, "use --listen with another address or port")
    })?;
    eprintln!("serving http://{}/metrics", listener.local_addr()?);
    server::serve(&listener, &|| collect(None).map(|machine| exposition::text(&machine)))
}
