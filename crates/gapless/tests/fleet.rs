//! `gapless fleet` as a person and a program use it.

mod support;

use serde_json::Value;
use std::fs;
use support::{repo, run, run_in, schema};

fn data(name: &str) -> String {
    repo(&format!("testdata/fleet/{name}.csv.zst")).display().to_string()
}

fn lists() -> [String; 4] {
    let [nodes, pods] = [data("openb_node_list_gpu_node"), data("openb_pod_list_default")];
    ["--nodes".to_owned(), nodes, "--pods".to_owned(), pods]
}

#[test]
fn the_published_run_is_simulated_logged_and_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let lists = lists();
    let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
    let level = ["--arrivals", "1.3", "--seed", "42"];
    let more = ["--policy", "FGD", "--log", "placements.csv", "--format", "json"];
    let done = run_in(folder.path(), &[&["fleet", "sim"], &lists[..], &level, &more].concat(), None);
    assert_eq!(done.code, 0, "{}", done.err);
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(schema::against("fleet-sim", &json), [""; 0]);
    assert_eq!(json["gpus_total"], 6212);
    assert_eq!(json["gpus_allocated"], 5919.41);
    assert_eq!((&json["arrivals"], &json["seed"]), (&10_866.into(), &42.into()));
    let log = fs::read_to_string(folder.path().join("placements.csv")).expect("the log");
    assert_eq!(log.lines().next(), Some("order,pod,node,gpus,milli,cpu_milli,memory_mib,status"));
    assert_eq!(log.lines().count(), 10_867);
    let judge = |more: &[&str]| {
        run_in(folder.path(), &[&["fleet", "check-log", "placements.csv"], &lists[..], more].concat(), None)
    };
    let right = judge(&level);
    assert_eq!(right.code, 0, "{}{}", right.out, right.err);
    let words: Vec<&str> = right.out.split_whitespace().collect();
    assert!(words.join(" ").contains("5919.410 of 6212 GPUs"), "{}", right.out);
    assert_eq!(judge(&["--arrivals", "1.3", "--seed", "43"]).code, 1, "another seed gives another order");
    let broken = log.replacen("placed", "failed", 1);
    fs::write(folder.path().join("placements.csv"), broken).expect("written");
    assert_eq!(judge(&[]).code, 1);
}

#[test]
fn all_policies_are_compared_on_the_same_arrivals() {
    let folder = tempfile::tempdir().expect("a folder");
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,2,A\nb,8000,8192,2,B\n";
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1024,1,600\nq,1000,1024,1,400\nr,1000,1024,2,1000\n";
    fs::write(folder.path().join("nodes.csv"), nodes).expect("written");
    fs::write(folder.path().join("pods.csv"), pods).expect("written");
    let all =
        ["fleet", "sim", "--nodes", "nodes.csv", "--pods", "pods.csv", "--policy", "all", "--arrivals", "1"];
    let ask = |more: &[&str]| run_in(folder.path(), &[&all[..], more].concat(), None);
    let text = ask(&[]);
    assert_eq!(text.code, 0, "{}", text.err);
    assert!(text.out.lines().all(|line| line.chars().count() <= 80), "{}", text.out);
    let json: Value = serde_json::from_str(&ask(&["--format", "json"]).out).expect("JSON");
    let policies = json["policies"].as_array().expect("a list");
    assert_eq!(policies.len(), 7);
    for one in policies {
        assert_eq!(schema::against("fleet-sim", one), [""; 0]);
    }
    let page = ask(&["--format", "html", "--log", "log.csv"]).out;
    assert!(page.contains("Fragmentation over arrivals") && page.contains("prefers-color-scheme:dark"));
    assert!(folder.path().join("log-bestfit.csv").exists());
}

#[test]
fn what_is_wrong_is_told_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("nodes.csv"), "sn,cpu_milli\na,1\n").expect("written");
    fs::write(folder.path().join("pods.csv"), "name\n").expect("written");
    let files = ["fleet", "sim", "--nodes", "nodes.csv", "--pods", "pods.csv", "--log", "log.csv"];
    for (more, part) in [
        (&[][..], "line 1: the header has no column \"memory_mib\""),
        (&["--policy", "best"], "no column"),
        (&["--policy", "worst"], "unknown policy \"worst\""),
        (&["--arrivals", "0"], "invalid level 0"),
        (&["--arrivals", "nan"], "invalid level NaN"),
        (&["--arrivals", "1.3", "--times"], "cannot be used with"),
    ] {
        let done = run_in(folder.path(), &[&files[..], more].concat(), None);
        assert_eq!(done.code, 2, "{more:?}");
        assert!(done.err.contains(part), "{more:?}: {}", done.err);
        assert!(!folder.path().join("log.csv").exists());
    }
    let done = run(&["fleet", "sim", "--nodes", "/nowhere", "--pods", "/nowhere"]);
    assert!(done.code == 2 && done.err.contains("cannot read /nowhere"), "{}", done.err);
    let done = run(&["fleet", "serve", "--api", "ftp://x:1"]);
    assert!(done.code == 2 && done.err.contains("invalid address"), "{}", done.err);
    let done = run(&["fleet", "serve", "--api", "https://x:1"]);
    assert!(done.code == 2 && done.err.contains("--ca"), "{}", done.err);
}

#[test]
fn requests_are_right_sized_from_recorded_peaks() {
    let folder = tempfile::tempdir().expect("a folder");
    let head = "pod,group,gpus,requested_mib,peak_mib,status\n";
    let rows: String = (0..4).map(|i| format!("p{i},train,2,81920,{},ok\n", 20_000 + i)).collect();
    fs::write(folder.path().join("peaks.csv"), format!("{head}{rows}q,serve,1,1000,1000,oom\n"))
        .expect("written");
    let ask =
        |more: &[&str]| run_in(folder.path(), &[&["fleet", "advise", "peaks.csv"], more].concat(), None);
    let done = ask(&["--gpu-memory", "80GiB"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("3 such pods could share a GPU; now 1"), "{}", done.out);
    assert!(done.out.contains("raise to at least"), "{}", done.out);
    let json: Value = serde_json::from_str(&ask(&["--format", "json"]).out).expect("JSON");
    assert_eq!(json["groups"][0]["verdict"], "lower");
    fs::write(folder.path().join("peaks.csv"), format!("{head}p,g,1,-5,1,ok\n")).expect("written");
    let done = ask(&[]);
    assert!(done.code == 2 && done.err.contains("line 2: column requested_mib"), "{}", done.err);
}

#[test]
fn other_programs_place_by_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let nodes =
        r#"{"nodes": [{"name": "a", "cpus": 8, "memory": "64GiB", "gpus": 2, "gpu_memory": "80GiB"}]}"#;
    fs::write(folder.path().join("nodes.json"), nodes).expect("written");
    let ask = |name: &str, size: &str| {
        format!(
            "{{\"op\": \"ask\", \"pod\": {{\"name\": \"{name}\", \"gpus\": 1, \"gpu_memory\": \"{size}\"}}}}\n"
        )
    };
    let long = format!("{}\n", "x".repeat(3 << 20));
    let lines = [
        ask("p", "60GiB"),
        ask("q", "60GiB"),
        ask("r", "60GiB"),
        "\n".to_owned(),
        long,
        "{\"op\": \"free\", \"id\": \"p\"}\n".to_owned(),
        "{\"op\": \"state\"}".to_owned(),
    ];
    // Two names of which no byte is text are not taken for one.
    let named = |name: &[u8]| {
        let line = ask("?", "1GiB");
        let (before, after) = line.split_once('?').expect("the name");
        [before.as_bytes(), name, after.as_bytes()].concat()
    };
    let (one, other) = (named(b"s\xff"), named(b"s\xfe"));
    let input = [&one[..], &other, lines.concat().as_bytes()].concat();
    let done = run_in(folder.path(), &["fleet", "place", "--nodes", "nodes.json"], Some(&input));
    assert_eq!(done.code, 0, "{}", done.err);
    let answers: Vec<Value> =
        done.out.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let (wrong, answers) = answers.split_at(2);
    for answer in wrong {
        assert!(
            answer["error"].as_str().is_some_and(|error| error.contains("invalid UTF-8 at byte")),
            "{answer}"
        );
    }
    assert_eq!(answers.len(), 6, "an empty line has no answer: {}", done.out);
    assert_ne!(answers[0]["place"]["gpus"], answers[1]["place"]["gpus"], "each has a GPU of its own");
    assert_eq!(answers[2]["waits"], 0);
    assert!(answers[3]["error"].as_str().is_some_and(|error| error.contains("bytes")));
    assert_eq!(answers[4]["placed"][0]["id"], "r");
    assert_eq!((&answers[5]["pods"], &answers[5]["waiting"]), (&2.into(), &0.into()));
    let missing = run_in(folder.path(), &["fleet", "place", "--nodes", "nowhere.json"], None);
    assert_eq!(missing.code, 2);
}

#[test]
fn an_agent_tells_what_is_wrong_with_its_options() {
    for (words, part) in [
        (&["--node", "a b"][..], "--node: invalid name"),
        (&["--api", "ftp://x:1"], "--api: invalid address"),
        (&["--bookings", "/nowhere"], "cannot read /nowhere"),
    ] {
        let done = run(&[&["fleet", "agent", "--once"], words].concat());
        assert_eq!(done.code, 2, "{}", done.out);
        assert!(done.err.contains(part), "{}", done.err);
    }
    let done = run(&["fleet", "agent", "--once", "--format", "json"]);
    assert!(done.code < 2, "{}", done.err);
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(schema::against("fleet-agent", &json), [""; 0]);
    let done = run(&["fleet", "agent", "--format", "json"]);
    assert!(done.code == 2 && done.err.contains("--format needs --once"), "{}", done.err);
}

#[test]
fn claims_are_made_of_annotations() {
    let pod = |notes: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "p", "annotations": {{{notes}}}}},
            "spec": {{"containers": [{{"name": "a"}}]}}}}"#
        )
    };
    let ask = |input: &str, more: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        run_in(folder.path(), &[&["fleet", "dra", "claims", "-"], more].concat(), Some(input.as_bytes()))
    };
    let right = pod(r#""gapless.dev/gpu-memory": "18GiB""#);
    let service = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}"#;
    let list = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{right}, {service}]}}"#);
    let done = ask(&list, &[]);
    assert_eq!(done.code, 0, "{}", done.err);
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    let kinds: Vec<&str> =
        json["items"].as_array().expect("a list").iter().filter_map(|one| one["kind"].as_str()).collect();
    assert_eq!(kinds, ["ResourceClaimTemplate", "Pod", "Service"]);
    let claim = &json["items"][1]["spec"]["resourceClaims"][0];
    assert_eq!(claim["resourceClaimTemplateName"], json["items"][0]["metadata"]["name"]);
    let exactly = |out: &str| -> Value {
        let json: Value = serde_json::from_str(out).expect("JSON");
        json["items"][0]["spec"]["spec"]["devices"]["requests"][0]["exactly"].clone()
    };
    assert_eq!(exactly(&done.out)["capacity"]["requests"]["memory"], "18Gi");
    assert!(exactly(&ask(&right, &["--whole"]).out)["capacity"].is_null());
    let auto = pod(
        r#""gapless.dev/gpu-memory": "auto", "gapless.dev/fit": "llama-3.2-1b --batch 1 --memory 80GiB""#,
    );
    let done = ask(&auto, &[]);
    let memory = exactly(&done.out)["capacity"]["requests"]["memory"].clone();
    assert!(memory.as_str().is_some_and(|text| text.ends_with("Mi") || text.ends_with("Gi")), "{}", done.err);
    for (input, part) in [
        ("apiVersion: v1", "invalid JSON"),
        (&pod(r#""gapless.dev/gpu-memory": "lots""#), "Pod p: gapless.dev/gpu-memory: invalid size"),
        (&pod(r#""gapless.dev/gpu-milli": "300""#), "counts bytes"),
        (&pod(r#""gapless.dev/gpu-memory": "auto", "gapless.dev/fit-config-map": "m""#), "only the cluster"),
    ] {
        let done = ask(input, &[]);
        assert!(done.code == 2 && done.err.contains(part), "{input}: {}", done.err);
    }
    let done = run(&["fleet", "dra", "class"]);
    let class: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(class["kind"], "DeviceClass");
    let done = run(&["fleet", "agent", "--once", "--dra"]);
    assert!(done.code == 2 && done.err.contains("--dra needs an API server"), "{}", done.err);
}

/// `cargo xtask test` builds without the feature `tls`: every option that needs TLS says so, and how to get it.
#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_how_to_get_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem").display().to_string();
    std::fs::write(&file, "").expect("written");
    let https = ["--api", "https://127.0.0.1:1", "--ca", &file];
    let http = ["--api", "http://127.0.0.1:1"];
    let serves = ["--tls-cert", &file, "--tls-key", &file];
    for words in [
        [&["fleet", "serve"], &https[..]].concat(),
        [&["fleet", "serve"], &http[..], &serves[..]].concat(),
        [&["fleet", "agent"], &https[..]].concat(),
    ] {
        let done = run(&words);
        assert_eq!(done.code, 2, "{words:?}: {}", done.err);
        assert!(done.err.contains("this build of gapless has no TLS"), "{words:?}: {}", done.err);
        assert!(done.err.contains("--features tls"), "{words:?}: {}", done.err);
    }
}

#[test]
fn binds_are_served_to_no_machine_that_could_be_anyone() {
    let serve = |listen: &str| run(&["fleet", "serve", "--api", "http://127.0.0.1:1", "--listen", listen]);
    for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8888"] {
        let done = serve(open);
        assert!(done.code == 2 && done.err.contains("could bind pods"), "{open}: {}", done.err);
        assert!(done.err.contains("--client-ca"), "{}", done.err);
    }
}

#[test]
fn a_pod_is_shown_as_the_webhook_makes_it() {
    let ask = |annotations: &str| {
        let pod = format!(
            r#"{{"kind": "Pod", "metadata": {{"annotations": {annotations}}},
                "spec": {{"containers": [{{"name": "a", "env": [{{"name": "GAPLESS_TENANT", "value": "x"}}]}}]}}}}"#
        );
        let folder = tempfile::tempdir().expect("a folder");
        run_in(folder.path(), &["fleet", "admit", "--pod", "-"], Some(pod.as_bytes()))
    };
    let done = ask(r#"{"gapless.dev/gpu-memory": "18GiB"}"#);
    assert_eq!(done.code, 0, "{}", done.err);
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    let env = json["spec"]["containers"][0]["env"].as_array().expect("variables");
    let path =
        |at: usize| env[at]["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap_or_default().to_owned();
    assert_eq!((env.len(), path(0).as_str()), (2, "metadata.annotations['gapless.dev/tenant']"));
    assert_eq!(path(1), "metadata.annotations['gapless.dev/gpu-uuids']");
    let done = ask(r#"{"gapless.dev/gpu-memory": "lots"}"#);
    assert!(done.code == 1 && done.err.contains("lots"), "{}", done.err);
    let done = run(&["fleet", "admit", "--pod", "nowhere.json"]);
    assert!(done.code == 2 && done.err.contains("nowhere.json"), "{}", done.err);
    let done = run(&["fleet", "admit"]);
    assert_eq!(done.code, 2, "{}", done.err);
}
