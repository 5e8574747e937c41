//! Quantised bytes are those of compressed-tensors, whose checksums `testdata/weights/quantize.py` wrote, and for the
//! sparse schemes `testdata/weights/sparse.py`.

mod made;

use gapless_weights::quantize::matrix::{Kind, largest, rows, stored, whole_scale};
use gapless_weights::quantize::scheme::Scheme;
use made::{made, print};
use serde_json::Value as Json;

fn golden() -> Json {
    let mut all: Json =
        serde_json::from_str(include_str!("../../../testdata/weights/quantize.json")).unwrap();
    let sparse: Json = serde_json::from_str(include_str!("../../../testdata/weights/sparse.json")).unwrap();
    for (part, of) in ["cases", "config"].map(|key| (key, &sparse[key])) {
        for (scheme, found) in of.as_object().unwrap() {
            all[part][scheme] = found.clone();
        }
    }
    all
}

#[test]
fn sixty_tensors_of_odd_shapes_per_scheme_are_byte_for_byte_those_of_compressed_tensors() {
    let golden = golden();
    let mut wrong = Vec::new();
    for scheme in Scheme::ALL {
        let cases = golden["cases"][scheme.name()].as_array().unwrap();
        assert_eq!(cases.len(), 60);
        for case in cases {
            let text = |key: &str| case[key].as_str().unwrap();
            let number = |key: &str| case[key].as_u64().unwrap();
            let (height, width) = (case["shape"][0].as_u64().unwrap(), case["shape"][1].as_u64().unwrap());
            let kind = Kind::of(text("dtype")).unwrap();
            let bytes = made(text("dtype"), number("family"), number("seed"), height * width);
            assert_eq!(print(&bytes), text("input"), "the test makes other weights than the script");
            let whole = whole_scale(kind, largest(kind, &bytes).unwrap());
            let found = rows(scheme, kind, &bytes, width as usize, whole).unwrap();
            let last = match scheme {
                Scheme::W4a16 | Scheme::Sparse24 | Scheme::SparseBitmask => {
                    [height.to_le_bytes(), width.to_le_bytes()].concat()
                }
                _ => whole.to_le_bytes().to_vec(),
            };
            let stored = stored(kind, &bytes, width as usize).unwrap();
            if scheme == Scheme::SparseBitmask {
                assert_eq!(stored, found.kept.iter().sum::<u64>());
            }
            let offsets: Vec<u8> = found
                .kept
                .iter()
                .scan(0u64, |sum, kept| Some((std::mem::replace(sum, *sum + kept)).to_le_bytes()))
                .flatten()
                .collect();
            let parts = scheme.parts(kind.name(), height, width, stored);
            assert_eq!(parts.len(), case["parts"].as_object().unwrap().len());
            for (part, bytes) in parts.iter().zip([&found.weights, &found.scales, &last, &offsets]) {
                let expected = &case["parts"][part.name];
                assert_eq!(expected[0], part.dtype, "{scheme:?} {}", part.name);
                assert_eq!(expected[1], Json::from(part.shape.clone()), "{scheme:?} {}", part.name);
                if expected[2] != print(bytes) {
                    wrong.push(format!(
                        "{} {} {} family {} {height}x{width} seed {}",
                        scheme.name(),
                        part.name,
                        kind.name(),
                        number("family"),
                        number("seed")
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_configuration_is_that_of_compressed_tensors() {
    let golden = golden();
    for scheme in Scheme::ALL {
        assert_eq!(
            scheme.config(&["lm_head".to_owned()], 0.5),
            golden["config"][scheme.name()],
            "{scheme:?}"
        );
    }
}
