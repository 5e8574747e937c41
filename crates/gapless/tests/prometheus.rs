//! `gapless metrics` scraped by a real Prometheus, Debian's package.
//!
//! PROMETHEUS names the folder with `prometheus` and `promtool`; `cargo xtask test` gets it and sets this. Without
//! it, and without a Prometheus on the PATH, the test prints that it was skipped.

use gapless_stats::{Card, Counters, Folder, Process, Statistics, Writer, process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that is killed when the test ends, also by a panic.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn programs() -> Option<[PathBuf; 2]> {
    let named = std::env::var_os("PROMETHEUS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = named.into_iter().chain(std::env::split_paths(&path));
    let both = |folder: PathBuf| ["prometheus", "promtool"].map(|name| folder.join(name));
    folders.find_map(|folder| Some(both(folder)).filter(|both| both.iter().all(|path| path.is_file())))
}

fn write_statistics(folder: &Path) -> Writer {
    let folder = Folder::make(&[folder.to_owned()]).expect("a folder");
    let own = Process::current("gapless test").expect("/proc");
    let mut writer = Writer::create(&folder, &own).expect("a statistics file");
    let card = Card {
        uuid: Some([7; 16]),
        name: "Card \"with\" a\\name".to_owned(),
        live: 123_456_789,
        reserved: 987_654_321,
        peak_live: 600_000_000,
        peak_reserved: 1_000_000_000,
        total: 4 << 30,
        free: 2 << 30,
        counters: Counters { allocations: 42, ..Counters::default() },
        ..Card::default()
    };
    writer
        .write(&Statistics { time: process::now(), cards: vec![card], ..Statistics::new(own) })
        .expect("written");
    writer
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// The body of an answer; `None` if no server answers.
fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

#[test]
fn a_real_prometheus_scrapes_it() {
    let Some([prometheus, promtool]) = programs() else {
        // In CI a skipped test must not pass.
        assert!(std::env::var_os("CI").is_none(), "no prometheus: `cargo xtask test` gets one");
        eprintln!(
            "\n********  SKIPPED: no prometheus; `cargo xtask test` gets one, or name its folder in PROMETHEUS  ********\n"
        );
        return;
    };
    let temp = tempfile::tempdir().expect("a folder");
    let files = temp.path().join("files");
    let _writer = write_statistics(&files);
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    command
        .args(["metrics", "--listen", "127.0.0.1:0"])
        .env("GAPLESS_RUN_DIR", &files)
        .stderr(Stdio::piped());
    let mut metrics = Running(command.spawn().expect("the binary starts"));
    let mut line = String::new();
    BufReader::new(metrics.0.stderr.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let address = line.trim().trim_start_matches("serving http://").trim_end_matches("/metrics").to_owned();

    // Prometheus' own linter accepts the metrics.
    let text = get(&address, "/metrics").expect("metrics");
    let mut lint = Command::new(&promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    lint.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("sent");
    let linted = lint.wait_with_output().expect("promtool ends");
    let told = [linted.stdout, linted.stderr].concat();
    assert!(linted.status.success() && told.is_empty(), "{}\n{text}", String::from_utf8_lossy(&told));

    let config = temp.path().join("prometheus.yml");
    let scrape = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: gapless\n    static_configs:\n      - targets: ['{address}']\n"
    );
    std::fs::write(&config, scrape).expect("its configuration");
    let server = format!("127.0.0.1:{}", free_port());
    let log = std::fs::File::create(temp.path().join("log")).expect("a log");
    let child = Command::new(&prometheus)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", temp.path().join("data").display()))
        .arg(format!("--web.listen-address={server}"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("prometheus starts");
    let mut child = Running(child);

    // Prometheus scrapes within a second of its start, but a busy machine may need minutes.
    let query = |name: &str| -> Option<Value> {
        let body = get(&server, &format!("/api/v1/query?query={name}"))?;
        let value: Value = serde_json::from_str(&body).ok()?;
        let pid = std::process::id().to_string();
        value["data"]["result"]
            .as_array()?
            .iter()
            .find(|series| series["metric"]["pid"] == pid.as_str())
            .cloned()
    };
    let found = (0..600).find_map(|_| {
        let ended = child.0.try_wait().expect("its state");
        assert!(ended.is_none(), "{}", std::fs::read_to_string(temp.path().join("log")).unwrap_or_default());
        let found = query("gapless_allocated_bytes");
        if found.is_none() {
            std::thread::sleep(Duration::from_millis(200));
        }
        found
    });
    let live = found.expect("the metric arrives");
    assert_eq!(live["value"][1], "123456789");
    let labels = &live["metric"];
    assert_eq!(labels["UUID"], "GPU-07070707-0707-0707-0707-070707070707");
    assert_eq!((&labels["gpu"], &labels["job"]), (&"0".into(), &"gapless".into()));
    let info = get(&server, "/api/v1/query?query=gapless_device_info").expect("an answer");
    assert!(info.contains(r#""model":"Card \"with\" a\\name""#), "{info}");
    let value = |name: &str| query(name).unwrap_or_else(|| panic!("{name}"))["value"][1].clone();
    assert_eq!(value("gapless_reserved_bytes"), "987654321");
    assert_eq!(value("gapless_allocations_total"), "42");
    assert_eq!(value("gapless_fragmentation_ratio"), "0.4");
}
