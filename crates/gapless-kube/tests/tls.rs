//! The extender over TLS. `cargo xtask ci` runs it, with the feature.
#![cfg(feature = "tls")]

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use fake::Fake;
use gapless_kube::api::{Address, Api};
use gapless_kube::{serve, tls};
use serde_json::json;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn the_scheduler_is_served_over_tls() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let server =
        tls::server(&folder.join("certificate.pem"), &folder.join("key.pem"), None).expect("a certificate");
    let client = tls::client(&folder.join("authority.pem")).expect("an authority");
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let address = Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None };
    let api = Arc::new(Api::new(address));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    std::thread::spawn(move || serve::serve(&listener, Some(server), &api, &flag));
    // The client for the API server calls the extender here, with the same code over TLS.
    let address = Address { host: "localhost".to_owned(), port, tls: Some(client), token: None };
    let secure = Api::new(address);
    let answer =
        secure.post("/filter", &json!({"Pod": {}, "NodeNames": ["n0"]})).expect("an answer over TLS");
    assert!(answer["Error"].is_string());
    // Several calls over one connection, as bookings make them.
    let mut session = secure.session();
    assert_eq!(session.begin("/nothing").expect_err("no such path").status(), Some(404));
    for _ in 0..5 {
        let args = json!({"Pod": {}, "NodeNames": ["n0"]});
        session.call("POST", "/filter", Some("application/json"), Some(&args)).expect("the same connection");
    }
    let plain = Api::new(Address { host: "localhost".to_owned(), port, tls: None, token: None });
    assert!(plain.get("/healthz").is_err(), "plain text is not served");
    assert!(
        tls::server(&folder.join("key.pem"), &folder.join("key.pem"), None).is_err(),
        "a key is no certificate"
    );
    stop.store(true, Ordering::Relaxed);
    fake.stop();
}

#[test]
fn a_client_without_a_certificate_is_not_served_where_one_is_asked_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let of = |name: &str| folder.join(name);
    let server = tls::server(&of("certificate.pem"), &of("key.pem"), Some(&of("authority.pem")));
    let server = server.expect("a certificate and an authority");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let door = std::thread::spawn(move || serve::serve_admission(&listener, &|| Some(server.clone()), &flag));
    let client = tls::client(&of("authority.pem")).expect("an authority");
    let api = Api::new(Address { host: "localhost".to_owned(), port, tls: Some(client), token: None });
    for _ in 0..3 {
        let error = api.get("/healthz").expect_err("no certificate, no answer");
        assert_eq!(error.status(), None, "{error}");
    }
    stop.store(true, Ordering::Relaxed);
    door.join().expect("no panic").expect("it listened");
}
