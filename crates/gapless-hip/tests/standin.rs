//! The allocator over HIP's runtime, on the stand-in of torch-bench. No card was ever used.
//!
//! The loader reads its path when a process begins, so each case runs this test program again.

use gapless_cuda::CudaDevice;
use gapless_pool::{Device, Options, Pool, PoolKey, StreamHandle};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

fn standin(name: &str) -> PathBuf {
    standin_with(name, &[])
}

fn standin_with(name: &str, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../torch-bench");
    let sources = [
        "standin/hip.c",
        "standin/device.c",
        "standin/driver_api.c",
        "python/card.c",
        "python/cards.c",
        "python/contents.c",
        "python/driver_api.c",
        "python/faults.c",
        "../card/echo.c",
        "../card/properties.c",
    ];
    let built = Command::new("cc")
        .args(["-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
        .args(flags)
        .arg("-o")
        .arg(folder.join("libamdhip64.so"))
        .args(sources.map(|source| bench.join(source)))
        .args(["-lpthread", "-ldl"])
        .status()
        .expect("the C compiler that Rust links with");
    assert!(built.success());
    folder
}

/// Runs one of the ignored tests below with the stand-in and an environment.
fn ask(case: &str, folder: &Path, environment: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", case, "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env(gapless_hip::runtime::VARIABLE, "hip")
        .envs(environment.iter().copied())
        .output()
        .expect("this test runs again");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_allocator_runs_on_hip() {
    ask("child_pool", &standin("pool"), &[("STANDIN_CAPACITY", "1073741824")]);
}

#[test]
fn the_threads_device_is_as_before() {
    ask("child_devices", &standin("devices"), &[]);
}

/// The card and its driver are C, and every test of the Python package runs on them.
#[test]
fn the_card_in_c_is_clean_under_address_and_undefined_behaviour_sanitizers() {
    let found = Command::new("cc").arg("-print-file-name=libasan.so").output().expect("a C compiler").stdout;
    let runtime = PathBuf::from(String::from_utf8_lossy(&found).trim());
    if !runtime.is_absolute() {
        assert!(std::env::var_os("CI").is_none(), "CI has a compiler with libasan.so");
        return eprintln!("not run: this C compiler has no libasan.so");
    }
    let flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let folder = standin_with("sanitized", &flags);
    let runtime = runtime.to_str().expect("UTF-8");
    // The program ends with the card's state in use, so what is reachable is no leak.
    for case in ["child_pool", "child_devices"] {
        let environment =
            [("LD_PRELOAD", runtime), ("ASAN_OPTIONS", "detect_leaks=0"), ("STANDIN_CAPACITY", "1073741824")];
        ask(case, &folder, &environment);
    }
}

#[test]
fn a_card_that_cannot_is_refused_with_the_reason() {
    let folder = standin("unable");
    for (variable, value, reason) in [
        ("STANDIN_HIP_VMM", "0", "no virtual memory management"),
        ("STANDIN_HIP_ALIAS", "0", "mapping a page a second time failed"),
        ("STANDIN_HIP_COPIES", "1", "does not show at both"),
        ("STANDIN_HIP_GRANULE", "4194304", "multiples of 4194304 bytes"),
        ("STANDIN_CAPACITY", "2097152", "lack of memory"),
    ] {
        ask("child_refused", &folder, &[(variable, value), ("EXPECTED_REASON", reason)]);
    }
}

#[test]
fn a_machine_without_the_runtime_is_an_error_in_words() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nothing");
    std::fs::create_dir_all(&folder).expect("a folder");
    ask("child_missing", &folder, &[]);
}

#[test]
#[ignore = "run by the tests above"]
fn child_pool() {
    assert_eq!(gapless_hip::choose(), Ok(true));
    gapless_hip::try_out(0).expect("the stand-in can do it all");
    let mut device = CudaDevice::new(0).expect("a card");
    assert_eq!(device.memory(), (1 << 30, 1 << 30), "the trial gave back what it took");
    let mut pool = Pool::new(device, Options { limit: Some(256 * MIB), ..Options::default() });
    let mut state = 20_261_116u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut refused = 0;
    for step in 0..3000 {
        if random(5) < 2 && !live.is_empty() {
            let (addr, _) = live.swap_remove(random(live.len() as u64) as usize);
            pool.free(addr).expect("it is allocated");
        } else {
            let size = [512, 40_000, MIB, 3 * MIB + 5, 17 * MIB][random(5) as usize] + random(4096);
            let stream = StreamHandle([0, 0x5000, 0x6000][random(3) as usize]);
            match pool.alloc(size, stream, PoolKey::default()) {
                Ok(addr) => {
                    if random(4) == 0 {
                        pool.record_stream(addr, StreamHandle(0x7000)).expect("it is allocated");
                    }
                    live.push((addr, size));
                }
                Err(_) => {
                    refused += 1;
                    for (addr, _) in live.drain(..live.len() / 2) {
                        pool.free(addr).expect("it is allocated");
                    }
                }
            }
        }
        if step % 100 == 0 {
            pool.check().expect("every invariant holds");
            let mut sorted = live.clone();
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "no byte is out twice");
        }
    }
    assert!(refused > 0, "the limit was met: memory moved between streams, and windows were mapped");
    assert!(pool.stats().harvested > 0, "free pages were mapped a second time");
    for (addr, _) in live {
        pool.free(addr).expect("it is allocated");
    }
    pool.trim();
    assert_eq!(pool.device_mut().memory().0, 1 << 30, "everything went back to the card");
}

/// A function of the stand-in that takes a number.
fn number_of(name: &std::ffi::CStr, argument: i32) -> u64 {
    let library = gapless_cuda::library::Library::loaded(c"libamdhip64.so").expect("the stand-in");
    let found = library.find(name).expect("a function of the stand-in");
    // SAFETY: the functions that these tests name take an int and return a number.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(i32) -> u64>(found)(argument) }
}

#[test]
#[ignore = "run by the tests above"]
fn child_devices() {
    assert_eq!(gapless_hip::choose(), Ok(true));
    let mut second = CudaDevice::new(1).expect("the second card");
    let before = number_of(c"hip_calls_on", 0);
    let addr = second.reserve(4 * MIB).expect("addresses");
    let page = second.create(4 * MIB).expect("a page");
    second.map(addr, 4 * MIB, page).expect("mapped");
    second.grant(addr, 4 * MIB).expect("granted");
    let event = second.record(StreamHandle(0)).expect("an event");
    second.discard(event);
    assert_eq!(number_of(c"hip_calls_on", 0), before, "no call reached the first card");
    assert!(number_of(c"hip_calls_on", 1) >= 5, "all were made with the second one current");
    second.unmap(addr, 4 * MIB).expect("unmapped");
    second.release(page, 4 * MIB);
    second.unreserve(addr, 4 * MIB);
    // A wait for the card reveals the current device of this thread.
    let waits = number_of(c"hip_calls_on", 0);
    number_of(c"hipDeviceSynchronize", 0);
    assert_eq!(number_of(c"hip_calls_on", 0), waits + 1, "the thread's device is the first one, as before");
    // All of the stand-in's streams belong to the first card, so their events are recorded there.
    gapless_cuda::streams::note(1, 0x5000);
    assert!(!second.is_covered(StreamHandle(0x5000)));
    let event = second.record(StreamHandle(0x5000)).expect("an event of the other card");
    second.discard(event);
}

#[test]
#[ignore = "run by the tests above"]
fn child_refused() {
    assert_eq!(gapless_hip::choose(), Ok(true));
    let error = gapless_hip::try_out(0).expect_err("it lacks something").to_string();
    let expected = std::env::var("EXPECTED_REASON").expect("a reason");
    assert!(error.contains(&expected), "{error:?} has no {expected:?}");
    assert!(error.starts_with("GPU 0 cannot run Gapless on HIP"), "{error}");
    let mut device = CudaDevice::new(0).expect("a card");
    let (free, total) = device.memory();
    assert_eq!(free, total, "the trial gave back what it took");
}

#[test]
#[ignore = "run by the tests above"]
fn child_missing() {
    assert_eq!(gapless_hip::choose(), Ok(true));
    let error = CudaDevice::new(0).expect_err("there is no runtime").to_string();
    assert!(error.contains("libamdhip64.so was not found"), "{error}");
}
