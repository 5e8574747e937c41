//! `gapless fleet serve`: the scheduler extender.

use super::size::Programs;
use crate::Answer;
use crate::cli::fleet::{AgentArgs, ServeArgs};
use crate::failure::Failure;
use anyhow::Result;
use gapless_kube::api::{Address, Api};
use gapless_kube::extender::Extender;
use gapless_kube::{serve, tls};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The folder in which Kubernetes mounts the service account of a pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub(super) fn run(args: &ServeArgs) -> Result<Answer> {
    let api = Arc::new(Api::new(address(&Server::of(args))?));
    if !args.listen.ip().is_loopback() && args.client_ca.is_none() {
        let what = format!("--listen {}: any machine that reaches this address could bind pods", args.listen);
        let help = "use 127.0.0.1 in the scheduler's pod, and --probes for other ports; or --tls-cert, --tls-key and \
                    --client-ca, with the scheduler's certificate in the tlsConfig of its extender";
        return Err(Failure::new(what, help).into());
    }
    let secure = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            needs_tls("leave out --tls-cert and --tls-key")?;
            let wrong = |what| Failure::new(what, "name PEM files with --tls-cert and --tls-key");
            Some(tls::server(certificate, key, args.client_ca.as_deref()).map_err(wrong)?)
        }
        _ => None,
    };
    let bound = |address: SocketAddr, flag: &str| {
        TcpListener::bind(address).map_err(|error| {
            let what = format!("{address} cannot be served: {error}");
            Failure::new(what, format!("use {flag} with another address or port"))
        })
    };
    let listener = bound(args.listen, "--listen")?;
    let probes = args.probes.map(|address| bound(address, "--probes")).transpose()?;
    let scheme = if secure.is_some() { "https" } else { "http" };
    eprintln!("serving {scheme}://{}", listener.local_addr()?);
    let stop = ended();
    let sizer = Programs { traces: args.traces.clone() };
    let extender = Extender::new(Arc::clone(&api)).with_sizer(Box::new(sizer));
    std::thread::scope(|scope| {
        if let Some(probes) = &probes {
            let (extender, stop) = (&extender, &*stop);
            scope.spawn(move || serve::serve_probes(extender, probes, stop));
        }
        serve::serve_with(&extender, &listener, secure.as_ref(), &api, &stop)
    })?;
    Ok(Answer::Yes)
}

/// A flag that a signal sets.
pub(super) fn ended() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // If no handler can be set, a signal ends the process, which is safe too: all state is in the API server.
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(0);
        }
        // A watch may block on the API server, so the process ends after two seconds in any case.
        std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(2));
            std::process::exit(0);
        });
    });
    stop
}

/// The address of the API server in the user's flags.
struct Server<'a> {
    in_cluster: bool,
    api: Option<&'a str>,
    ca: Option<&'a Path>,
    token_file: Option<&'a Path>,
}

impl<'a> Server<'a> {
    fn of(args: &'a ServeArgs) -> Server<'a> {
        let (ca, token_file) = (args.ca.as_deref(), args.token_file.as_deref());
        Server { in_cluster: args.in_cluster, api: args.api.as_deref(), ca, token_file }
    }
}

/// The API server that an agent is to use, if it is to use one.
pub(super) fn optional_address(args: &AgentArgs) -> Result<Option<Address>> {
    if !args.in_cluster && args.api.is_none() {
        return Ok(None);
    }
    let (ca, token_file) = (args.ca.as_deref(), args.token_file.as_deref());
    address(&Server { in_cluster: args.in_cluster, api: args.api.as_deref(), ca, token_file }).map(Some)
}

/// The default build leaves TLS out, because it would take half a minute more.
pub(super) fn needs_tls(instead: &str) -> Result<(), Failure> {
    if tls::IS_BUILT_IN {
        return Ok(());
    }
    let help = format!(
        "install one that has it: cargo install --locked --path crates/gapless --features tls; or {instead}"
    );
    Err(Failure::new("this build of gapless has no TLS", help))
}

fn address(args: &Server<'_>) -> Result<Address> {
    let trust = |path: &Path| {
        needs_tls("use --api http://127.0.0.1:8001 behind `kubectl proxy`")?;
        tls::client(path).map_err(|what| Failure::new(what, "name a PEM file with the authorities with --ca"))
    };
    if args.in_cluster {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                Failure::new(
                    format!("{name} is not set, so this does not run in a pod"),
                    "use --api http://127.0.0.1:8001",
                )
            })
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let port = port.parse().map_err(|_| {
            Failure::new(format!("invalid port in KUBERNETES_SERVICE_PORT: {port:?}"), "use --api")
        })?;
        let account = PathBuf::from(ACCOUNT);
        let tls = Some(trust(&account.join("ca.crt"))?);
        return Ok(Address { host, port, tls, token: Some(account.join("token")) });
    }
    let url = args.api.unwrap_or_default();
    let wrong = || {
        Failure::new(format!("--api: invalid address {url:?}"), "use http://HOST:PORT or https://HOST:PORT")
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = port.parse().map_err(|_| wrong())?;
    let tls = match (scheme, args.ca) {
        ("http", None) => None,
        ("http", Some(_)) => {
            return Err(Failure::new("--ca has no meaning with http", "use https, or leave out --ca").into());
        }
        ("https", Some(path)) => Some(trust(path)?),
        ("https", None) => {
            return Err(
                Failure::new("https needs --ca", "name the authorities of the API server with --ca").into()
            );
        }
        _ => return Err(wrong().into()),
    };
    Ok(Address { host, port, tls, token: args.token_file.map(Path::to_owned) })
}
