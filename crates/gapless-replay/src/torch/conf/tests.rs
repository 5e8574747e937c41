//! Texts of settings, as releases of PyTorch read them.

use super::*;

const NOW: TorchVersion = TorchVersion(2, 11);

fn parsed(text: &str) -> TorchSettings {
    TorchSettings::parse(text, NOW).expect(text)
}

#[test]
fn settings_are_read() {
    let s = parsed("expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8");
    assert!(s.base.expandable_segments);
    assert_eq!(s.base.max_split_size, Some(Bytes(128 << 20)));
    assert!((s.base.garbage_collection_threshold - 0.8).abs() < 1e-12);
    assert_eq!(parsed(""), TorchSettings::default());
    assert_eq!(parsed("per_process_memory_fraction:0.5").fraction, Some(0.5));
    assert!(parsed("backend:cudaMallocAsync").malloc_async);
}

#[test]
fn large_segments_bound_the_other_sizes_wherever_they_stand() {
    let s = parsed("max_split_size_mb:64,large_segment_size_mb:48");
    assert_eq!(s.large_segment, 48 << 20);
    assert_eq!(s.max_non_split_rounding, 48 << 20);
    let error =
        TorchSettings::parse("max_split_size_mb:32,large_segment_size_mb:48", NOW).expect_err("32 < 48");
    assert!(error.to_string().contains("at least 48"), "{error}");
    assert!(TorchSettings::parse("large_segment_size_mb:48", TorchVersion(2, 9)).is_err());
}

#[test]
fn quirks_are_kept() {
    assert_eq!(parsed("max_split_size_mb:128MB").base.max_split_size, Some(Bytes(128 << 20)), "digits only");
    assert_eq!(
        parsed("max_split_ size_mb : 1 28").base.max_split_size,
        Some(Bytes(128 << 20)),
        "blanks vanish"
    );
    assert_eq!(parsed("max_split_size_mb,128").base.max_split_size, Some(Bytes(128 << 20)), "any separator");
    assert!(TorchSettings::parse("max_split_size_mb,128", TorchVersion(2, 6)).is_err(), "not before 2.9");
    assert!(TorchSettings::parse("expandable_segments:true", NOW).is_err(), "True, not true");
}

#[test]
fn divisions_fill_the_slots_as_pytorch_does() {
    let slots = |text: &str| parsed(text).base.roundup_power2_divisions;
    assert_eq!(slots("roundup_power2_divisions:4"), [4; 16]);
    let list = slots("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
    assert_eq!(list[..9], [1; 9]);
    assert_eq!(list[9..11], [2, 4]);
    assert_eq!(list[11..], [8; 5], "'>' fills above the last bound");
    let text = "roundup_power2_divisions:[512:2,1024:4,>:8]";
    let before = TorchSettings::parse(text, TorchVersion(2, 8)).expect(text);
    assert_eq!(before.base.roundup_power2_divisions[10], 8, "and on it, before 2.9");
    let holes = slots("roundup_power2_divisions:[4:2,64:8]");
    assert_eq!(holes[..8], [2, 2, 2, 0, 0, 0, 8, 0]);
}

#[test]
fn what_pytorch_refuses_is_refused_with_the_place() {
    for (text, part) in [
        ("max_split_size:128", "did you mean max_split_size_mb"),
        ("max_split_size_mb:4", "at least 20"),
        ("max_split_size_mb", "write max_split_size_mb:VALUE"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("roundup_power2_divisions:[64:3]", "power of two"),
        ("roundup_power2_divisions:[64:4", "end with ]"),
        ("backend:best", "native or cudaMallocAsync"),
    ] {
        let error = TorchSettings::parse(text, NOW).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn settings_that_move_no_block_are_kept() {
    let mut s =
        parsed("roundup_power2_divisions:[4:2,64:8],pinned_use_background_threads:True,max_split_size_mb:64");
    s.base.roundup_power2_divisions = [0; 16];
    assert_eq!(s.to_conf_keeping_others(), "max_split_size_mb:64,pinned_use_background_threads:True");
    assert_eq!(TorchSettings::default().to_conf_keeping_others(), "");
}

#[test]
fn reserves_are_read_as_2_15_reads_them() {
    let text = "expandable_segments:True,expandable_segments_reserve:0.5,expandable_segments_reserve:none,\
                expandable_segments_reserve_by_class:[decode:0.1,prefill:4G,odd:-1,decode:0.2]";
    let s = TorchSettings::parse(text, TorchVersion(2, 15)).expect(text);
    assert_eq!(s.reserves.all, Some(Reserve::Share(0.5)), "a value of no use keeps the one before");
    let expected = [("prefill".to_owned(), Reserve::Gib(4.0)), ("decode".to_owned(), Reserve::Share(0.2))];
    assert_eq!(s.reserves.by_class, expected, "the last of a name; one of no use is none");
    let again = TorchSettings::parse(&s.to_conf(), TorchVersion(2, 15)).expect("its own text");
    assert_eq!(again.reserves, s.reserves);
    let open = TorchSettings::parse("expandable_segments_reserve_by_class:[a:1", TorchVersion(2, 15));
    assert!(open.expect_err("no end").to_string().contains("end with ]"));
}

#[test]
fn a_setting_of_later_releases_is_refused_by_earlier_ones() {
    for (key, since) in KEYS {
        let value = match key {
            "backend" => "native",
            "garbage_collection_threshold" | "per_process_memory_fraction" => "0.5",
            "expandable_segments_reserve_by_class" => "[decode:0.5]",
            _ if key.ends_with("_mb") || key == "roundup_power2_divisions" => "64",
            "pinned_num_register_threads" | "expandable_segments_reserve" => "1",
            _ => "True",
        };
        for minor in 4..=15 {
            match TorchSettings::parse(&format!("{key}:{value}"), TorchVersion(2, minor)) {
                Ok(_) => assert!(minor >= since, "{key} in 2.{minor}"),
                Err(error) => {
                    assert!(minor < since, "{key} in 2.{minor}: {error}");
                    let told = format!(
                        "torch 2.{minor} has no allocator setting {key:?}: torch 2.{since} and later have it"
                    );
                    assert_eq!(error.to_string(), told);
                }
            }
        }
    }
}

#[test]
fn another_release_replays_what_it_has_of_the_recorded_settings() {
    let conf = "expandable_segments:True,large_segment_size_mb:48,expandable_segments_reserve:0.5,\
                pinned_max_cached_size_mb:64";
    let base = TorchSettings::parse(conf, TorchVersion(2, 15)).expect(conf).base;
    let of = |minor| TorchSettings::recorded(&base, TorchVersion(2, minor));
    assert_eq!((of(15).large_segment, of(15).reserves.all), (48 << 20, Some(Reserve::Share(0.5))));
    assert_eq!((of(12).large_segment, of(12).reserves.all), (48 << 20, None));
    assert_eq!((of(10).large_segment, of(10).base.expandable_segments), (LARGE_SEGMENT, true));
    assert!(of(15).to_conf_keeping_others().contains("expandable_segments_reserve:0.5"));
    assert!(!of(14).to_conf().contains("reserve"), "nothing that 2.14 would refuse");
}

#[test]
fn what_is_written_reads_back_the_same() {
    for text in [
        "expandable_segments:True",
        "max_split_size_mb:200,roundup_power2_divisions:8",
        "roundup_power2_divisions:[4:2,64:8]",
        "garbage_collection_threshold:0.6,large_segment_size_mb:64,max_non_split_rounding_mb:100",
    ] {
        let settings = parsed(text);
        let mut again = parsed(&settings.to_conf());
        again.base.conf.clone_from(&settings.base.conf);
        assert_eq!(again, settings, "{text} -> {}", settings.to_conf());
    }
}
