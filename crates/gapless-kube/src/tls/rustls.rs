//! TLS by rustls, from PEM files.

use crate::http::Stream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::path::Path;
use std::sync::Arc;

/// The configuration of a server: its certificates and key.
pub type Server = Arc<ServerConfig>;
/// The configuration of a client: the authorities that it trusts.
pub type Client = Arc<ClientConfig>;

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |what: String| format!("{}: {what}", path.display());
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?.collect();
    let all = all.map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() {
        return Err(wrong("the file holds no certificate: give a PEM file with one".to_owned()));
    }
    Ok(all)
}

/// A server's configuration from its certificates and key. With `clients`, only clients with a certificate of these
/// authorities are served.
pub fn server(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Server, String> {
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = match clients {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
            verifier.build().map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, secret)
        .map_err(|error| format!("{}: {error}", certificate.display()))?;
    Ok(Arc::new(config))
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(roots)
}

/// A client's configuration, which trusts the authorities in a file.
pub fn client(path: &Path) -> Result<Client, String> {
    let roots = authorities(path)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The serving end of a connection.
pub fn accept(config: &Server, stream: impl Stream + 'static) -> Result<Box<dyn Stream>, String> {
    let connection = ServerConnection::new(Arc::clone(config)).map_err(|error| error.to_string())?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}

/// The asking end of a connection.
pub fn connect(
    config: &Client,
    host: &str,
    stream: impl Stream + 'static,
) -> Result<Box<dyn Stream>, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("{host:?}: {error}"))?;
    let connection = ClientConnection::new(Arc::clone(config), name).map_err(|error| error.to_string())?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}
