//! `gapless fleet admit`: the webhook that gives containers their GPUs and their share.

use super::serve::{ended, needs_tls};
use crate::cli::fleet::AdmitArgs;
use crate::failure::Failure;
use crate::{Answer, output};
use anyhow::Result;
use gapless_kube::{admit, serve, tls};
use serde_json::Value;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A pod has at most 3 MiB.
const MOST_POD: u64 = 4 << 20;
/// The time after which the certificate's files are looked at again.
const LOOK_AFTER: Duration = Duration::from_secs(10);

pub(super) fn run(args: &AdmitArgs) -> Result<Answer> {
    if let Some(path) = &args.pod {
        return show(path);
    }
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        let help = "name PEM files; the API server calls webhooks over TLS only";
        return Err(Failure::new("--tls-cert and --tls-key are missing", help).into());
    };
    needs_tls("use deploy/inject, which needs no webhook (Kubernetes 1.36 or later)")?;
    let files = Files { certificate: certificate.clone(), key: key.clone() };
    let wrong = |what| Failure::new(what, "name PEM files with --tls-cert and --tls-key");
    let renewed =
        Renewed { now: Mutex::new((files.read().map_err(wrong)?, files.changed(), Instant::now())), files };
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        let what = format!("{} cannot be served: {error}", args.listen);
        Failure::new(what, "use --listen with another address or port")
    })?;
    eprintln!("serving https://{}/admit", listener.local_addr()?);
    serve::serve_admission(&listener, &|| Some(renewed.get()), &ended())?;
    Ok(Answer::Yes)
}

/// Prints a pod with its variables.
fn show(path: &Path) -> Result<Answer> {
    let name = path.display();
    let failed =
        |error: std::io::Error| Failure::new(format!("cannot read {name}: {error}"), "check the path");
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().take(MOST_POD).read_to_string(&mut text).map_err(failed)?;
    } else {
        std::fs::File::open(path)
            .map_err(failed)?
            .take(MOST_POD)
            .read_to_string(&mut text)
            .map_err(failed)?;
    }
    let help = "give one pod, such as `kubectl create --dry-run=client -o json -f pod.yaml` prints";
    let mut pod: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("{name}: invalid JSON: {error}"), help))?;
    if pod["kind"] != "Pod" {
        return Err(Failure::new(format!("{name}: this is not a Pod"), help).into());
    }
    let changes = match admit::patch(&pod) {
        Ok(changes) => changes,
        Err(why) => {
            eprintln!("refused: {why}");
            return Ok(Answer::No);
        }
    };
    for change in changes {
        let place = change["path"].as_str().and_then(|path| path.strip_suffix("/env"));
        let container = place.and_then(|place| pod.pointer_mut(place)).and_then(Value::as_object_mut);
        if let Some(container) = container {
            container.insert("env".to_owned(), change["value"].clone());
        }
    }
    output::write_to(None, |out| Ok(writeln!(out, "{pod:#}")?))?;
    Ok(Answer::Yes)
}

/// The files of a certificate.
#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn read(&self) -> Result<tls::Server, String> {
        tls::server(&self.certificate, &self.key, None)
    }

    /// The times of their last changes.
    fn changed(&self) -> [Option<SystemTime>; 2] {
        [&self.certificate, &self.key]
            .map(|path| std::fs::metadata(path).ok().and_then(|about| about.modified().ok()))
    }
}

/// A certificate that is renewed while the process runs. An invalid one changes nothing.
struct Renewed {
    files: Files,
    now: Mutex<(tls::Server, [Option<SystemTime>; 2], Instant)>,
}

impl Renewed {
    fn get(&self) -> tls::Server {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.2.elapsed() >= LOOK_AFTER {
            now.2 = Instant::now();
            let changed = self.files.changed();
            if changed != now.1
                && let Ok(server) = self.files.read()
            {
                (now.0, now.1) = (server, changed);
            }
        }
        now.0.clone()
    }
}
