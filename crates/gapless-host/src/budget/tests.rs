use super::*;

#[test]
fn limits_are_read_as_people_write_them() {
    // The grammar is that of `--host-limit`: GB is decimal, G and GiB are binary.
    for (text, bytes) in [("1048576", 1 << 20), ("20GB", 20_000_000_000), ("20G", 20 << 30), (" 7 B ", 7)] {
        assert_eq!(parse_limit(text.as_bytes()), Ok(bytes), "{text}");
    }
    for line in include_str!("../../../../testdata/sizes.csv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('|').collect();
        let wanted = fields[1].parse::<u64>().ok().filter(|&bytes| bytes > 0);
        assert_eq!(parse_limit(fields[0].as_bytes()).ok(), wanted, "{line}");
    }
    for wrong in ["", "GiB", "1x", "-1", "0", "99999999TiB"] {
        assert!(parse_limit(wrong.as_bytes()).is_err(), "{wrong}");
    }
    let auto = parse_limit(b"auto").expect("a machine with /proc");
    assert!(auto > 1 << 20);
}

#[test]
fn charges_stop_at_the_limit_and_come_back() {
    let budget = Budget::new();
    assert!(budget.charge(100), "no limit yet");
    budget.limit_to(1_000, None).expect("a page");
    assert_eq!(budget.total(), 100, "what was held counts");
    assert!(budget.charge(900));
    assert!(!budget.charge(1));
    assert_eq!((budget.own(), budget.total()), (1_000, 1_000), "a refusal charges nothing");
    budget.discharge(400);
    assert!(budget.charge(400));
    budget.discharge(5_000);
    assert_eq!((budget.own(), budget.total()), (0, 0), "more than was held comes never back");
    budget.leave();
}

/// A child that runs `work`, and then waits for a signal. `work` must not allocate, because other threads of the tests
/// may have the allocator's locks.
struct Child(i32);

impl Child {
    fn forked(work: impl FnOnce()) -> Child {
        // SAFETY: the child only runs `work`, which allocates nothing.
        Child::begin(unsafe { libc::fork() }, work)
    }

    /// Makes the child with the bare system call, as sandboxes do, so no handler around a fork runs.
    fn bare(work: impl FnOnce()) -> Child {
        // SAFETY: the child only runs `work`, which allocates nothing.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        Child::begin(child as i32, work)
    }

    fn begin(child: i32, work: impl FnOnce()) -> Child {
        assert!(child >= 0);
        if child == 0 {
            work();
            loop {
                // SAFETY: takes no argument.
                unsafe { libc::pause() };
            }
        }
        Child(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the number is that of a child of this process.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

#[test]
fn what_a_relative_keeps_is_asked_for_before_a_request_is_refused() {
    let budget = Budget::new();
    budget.limit_to(1_000, None).expect("a page");
    let shared = budget.shared().expect("a page");
    let child = Child::forked(|| {
        budget.after_fork();
        let seen = AtomicU64::new(0);
        assert!(budget.charge(900) && !budget.exchange(0, &seen));
    });
    until(|| budget.total() == 900);
    assert!(!budget.charge(500), "it keeps nothing");
    assert_eq!(shared.wanted.load(Ordering::Relaxed), 0, "so nobody is asked");
    drop(child);
    assert!(budget.reap() && budget.total() == 0);
    let _child = Child::forked(|| {
        budget.after_fork();
        let seen = AtomicU64::new(0);
        assert!(budget.charge(900));
        until(|| budget.exchange(3 << 20, &seen));
        assert!(!budget.exchange(3 << 20, &seen), "a relative's side, once");
        budget.discharge(900);
    });
    until(|| shared.slots().iter().any(Slot::keeps));
    assert!(budget.charge(500));
    assert_eq!((budget.total(), budget.refused()), (500, 1));
}

#[test]
fn what_another_library_keeps_is_asked_for_in_its_own_process() {
    let budget = Budget::new();
    budget.limit_to(1_000, None).expect("a page");
    assert!(!budget.charge(1_001), "there is nobody who keeps anything");
    let seen = AtomicU64::new(0);
    // The library has not reported yet.
    assert!(budget.charge_beside(900));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !budget.keep_beside(900, &seen) {
                std::thread::yield_now();
            }
            budget.discharge(900);
            budget.keep_beside(0, &seen);
        });
        assert!(budget.charge(500));
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !budget.keep_beside(0, &seen) {
                std::thread::yield_now();
            }
            budget.keep_beside(0, &seen);
        });
        assert!(!budget.charge(600), "it keeps nothing");
    });
    assert_eq!((budget.total(), budget.refused()), (500, 2));
}

/// A file for a page, which relatives map too.
fn page(name: &str) -> std::ffi::CString {
    let path = std::env::temp_dir().join(format!("gapless_budget_{}_{name}", std::process::id()));
    std::fs::write(&path, "").expect("a file");
    std::ffi::CString::new(path.to_str().expect("a name")).expect("no zero")
}

#[test]
fn a_process_that_became_another_program_holds_nothing_of_the_old_one() {
    let file = page("exec");
    let [old, new] = [Budget::new(), Budget::new()];
    old.limit_to(1_000, Some(&file)).expect("a page");
    assert!(old.charge(700));
    // The new program's budget knows only the page.
    new.limit_to(1_000, Some(&file)).expect("a page");
    assert_eq!(new.total(), 0);
    // A process whose part was taken by mistake takes it along to its next slot.
    assert!(!old.charge(301), "it holds 700");
    assert_eq!((old.own(), new.total()), (700, 700));
    old.leave();
    assert_eq!((new.own(), new.total()), (0, 0));
    std::fs::remove_file(file.to_str().expect("a name")).expect("removed");
}

#[test]
fn the_part_of_a_child_that_is_killed_is_returned_however_it_was_made() {
    for bare in [false, true] {
        let budget = Budget::new();
        budget.limit_to(1_000, None).expect("a page");
        assert!(budget.charge(10));
        let work = || {
            if !bare {
                budget.after_fork();
            }
            assert!(budget.charge(900));
            assert_eq!(budget.own(), 900, "what the parent holds is the parent's");
            budget.discharge(10);
        };
        let child = if bare { Child::bare(work) } else { Child::forked(work) };
        until(|| budget.total() == 900);
        assert!(!budget.try_charge(500) && !budget.reap(), "both live");
        drop(child);
        assert!(budget.charge(500), "the charge looks for such processes: bare {bare}");
        assert!(!budget.reap(), "this process lives");
        assert_eq!((budget.own(), budget.total()), (510, 510));
    }
}

#[test]
fn a_process_goes_on_after_the_thread_that_told_that_it_lives() {
    for tells in [true, false] {
        let budget: &'static Budget = Box::leak(Box::new(Budget::new()));
        let first = std::thread::spawn(move || {
            budget.limit_to(1_000, None).expect("a page");
            assert!(budget.charge(600));
            if tells {
                budget.thread_ends();
            }
        });
        first.join().expect("a thread");
        // If the thread did not report its end, the kernel marks the process as ended until a thread needs the slot.
        assert_eq!(budget.shared().expect("a page").reap(false), !tells);
        assert!(!budget.charge(500) && budget.charge(300), "{tells}");
        assert!(!budget.reap(), "this thread tells now");
        assert_eq!((budget.own(), budget.total()), (900, 900), "{tells}");
    }
}

#[test]
fn after_its_end_a_process_changes_nothing_that_others_see() {
    let budget = Budget::new();
    budget.limit_to(1_000, None).expect("a page");
    assert!(budget.charge(600));
    let child = Child::forked(|| {
        budget.after_fork();
        assert!(budget.charge(100));
    });
    until(|| budget.total() == 700);
    budget.leave();
    assert_eq!(budget.total(), 100);
    assert!(budget.charge(5_000), "what runs at the end of the process gets its memory");
    budget.discharge(5_600);
    assert_eq!(budget.total(), 100);
    drop(child);
}
