//! The schemes: the stored tensors of each, and its description for compressed-tensors.

use gapless_formats::safetensors::bits;
use serde_json::{Value as Json, json};

/// The version of compressed-tensors whose bytes and configuration are written.
pub const WRITTEN_AS: &str = "0.20.0";
/// The same for the sparse schemes, which later versions do not have.
pub const SPARSE_WRITTEN_AS: &str = "0.11.0";

/// A quantisation that needs no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// fp8 weights, a scale for each row; activations are quantised at run time.
    Fp8,
    /// fp8 weights, a scale for each block of 128 by 128.
    Fp8Block,
    /// int8 weights, a scale for each row; activations are quantised at run time.
    W8a8,
    /// int4 weights, a scale for each 128 values of a row.
    W4a16,
    /// fp4 weights, a power of two for each 32 values of a row; activations are quantised at run time.
    Mxfp4,
    /// fp4 weights, an fp8 scale for each 16 values of a row and one for the whole matrix.
    Nvfp4,
    /// The two larger of each four values, and a bit mask.
    Sparse24,
    /// The larger half of each row's values, less the zeros, and a bit mask.
    SparseBitmask,
}

/// One tensor that a scheme stores for a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The word that replaces `weight` in the matrix's name.
    pub name: &'static str,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
}

impl Part {
    pub fn bytes(&self) -> u64 {
        let values: u64 = self.shape.iter().product();
        values * bits(self.dtype).expect("a type of the format") / 8
    }
}

/// Rows and columns of a block of `fp8-block`.
pub(super) const BLOCK: u64 = 128;

impl Scheme {
    pub const ALL: [Scheme; 8] = [
        Scheme::Fp8,
        Scheme::Fp8Block,
        Scheme::W8a8,
        Scheme::W4a16,
        Scheme::Mxfp4,
        Scheme::Nvfp4,
        Scheme::Sparse24,
        Scheme::SparseBitmask,
    ];

    /// True if the scheme drops values and keeps the others unchanged.
    pub fn is_sparse(self) -> bool {
        matches!(self, Scheme::Sparse24 | Scheme::SparseBitmask)
    }

    /// The scheme's word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Fp8 => "fp8",
            Scheme::Fp8Block => "fp8-block",
            Scheme::W8a8 => "w8a8",
            Scheme::W4a16 => "w4a16",
            Scheme::Mxfp4 => "mxfp4",
            Scheme::Nvfp4 => "nvfp4",
            Scheme::Sparse24 => "sparse-24",
            Scheme::SparseBitmask => "sparse-bitmask",
        }
    }

    /// A line for people.
    pub fn about(self) -> &'static str {
        match self {
            Scheme::Fp8 => "fp8, a scale for each row; activations at run time",
            Scheme::Fp8Block => "fp8, a scale for each block of 128 by 128",
            Scheme::W8a8 => "int8, a scale for each row; activations at run time",
            Scheme::W4a16 => "int4, a scale for each 128 values",
            Scheme::Mxfp4 => "fp4, a power of two for each 32 values; activations at run time",
            Scheme::Nvfp4 => "fp4, an fp8 scale for each 16 values",
            Scheme::Sparse24 => "two of each four values and a bit mask: few engines load it",
            Scheme::SparseBitmask => "the larger half of each row and a bit mask: few engines load it",
        }
    }

    /// Columns must be a multiple of this.
    pub fn multiple(self) -> u64 {
        match self {
            Scheme::Fp8 | Scheme::Fp8Block | Scheme::W8a8 | Scheme::SparseBitmask => 1,
            Scheme::Sparse24 => 4,
            Scheme::W4a16 => 128,
            Scheme::Mxfp4 => 32,
            Scheme::Nvfp4 => 16,
        }
    }

    /// The tensors that are stored for a matrix: the weights, their scales or masks, and those that exist once for
    /// the whole matrix. `kept` is the number of values that `sparse-bitmask` stores.
    pub fn parts(self, dtype: &'static str, rows: u64, columns: u64, kept: u64) -> Vec<Part> {
        let part = |name, dtype, shape: &[u64]| Part { name, dtype, shape: shape.to_vec() };
        match self {
            Scheme::Fp8 => {
                vec![part("weight", "F8_E4M3", &[rows, columns]), part("weight_scale", dtype, &[rows, 1])]
            }
            Scheme::W8a8 => {
                vec![part("weight", "I8", &[rows, columns]), part("weight_scale", dtype, &[rows, 1])]
            }
            Scheme::Fp8Block => vec![
                part("weight", "F8_E4M3", &[rows, columns]),
                part("weight_scale", dtype, &[rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)]),
            ],
            Scheme::W4a16 => vec![
                part("weight_packed", "I32", &[rows, columns / 8]),
                part("weight_scale", dtype, &[rows, columns / 128]),
                part("weight_shape", "I64", &[2]),
            ],
            Scheme::Mxfp4 => vec![
                part("weight_packed", "U8", &[rows, columns / 2]),
                part("weight_scale", "U8", &[rows, columns / 32]),
            ],
            Scheme::Nvfp4 => vec![
                part("weight_packed", "U8", &[rows, columns / 2]),
                part("weight_scale", "F8_E4M3", &[rows, columns / 16]),
                part("weight_global_scale", "F32", &[1]),
            ],
            Scheme::Sparse24 => vec![
                part("compressed", dtype, &[rows, columns / 2]),
                part("bitmask", "U8", &[rows, columns.div_ceil(8)]),
                part("shape", "I64", &[2, 1]),
            ],
            Scheme::SparseBitmask => vec![
                part("compressed", dtype, &[kept]),
                part("bitmask", "U8", &[rows, columns.div_ceil(8)]),
                part("shape", "I64", &[2]),
                part("row_offsets", "I64", &[rows]),
            ],
        }
    }

    /// Bytes of the tensors that are stored for a matrix.
    pub fn bytes(self, dtype: &'static str, rows: u64, columns: u64, kept: u64) -> u64 {
        self.parts(dtype, rows, columns, kept).iter().map(Part::bytes).sum()
    }

    /// The `quantization_config` of a model whose modules `ignore` were left as they are. `sparsity` is the share of
    /// the model's values that a sparse scheme dropped.
    pub fn config(self, ignore: &[String], sparsity: f64) -> Json {
        let sparse = |format: &str, structure: &str| {
            json!({
                "version": SPARSE_WRITTEN_AS, "quant_method": "compressed-tensors", "transform_config": {},
                "sparsity_config": {
                    "format": format, "targets": ["Linear"], "ignore": ignore, "global_sparsity": sparsity,
                    "sparsity_structure": structure, "registry_requires_subclass": false,
                },
            })
        };
        let plain = |kind: &str, bits: u32, strategy: &str, group: Option<u32>, dynamic: bool| {
            json!({
                "type": kind, "num_bits": bits, "strategy": strategy, "group_size": group, "dynamic": dynamic,
                "symmetric": true,
            })
        };
        let with = |mut args: Json, key: &str, value: Json| {
            args[key] = value;
            args
        };
        let power = |args| with(args, "scale_dtype", json!("torch.uint8"));
        let (format, weights, activations) = match self {
            Scheme::Fp8 => (
                "float-quantized",
                plain("float", 8, "channel", None, false),
                plain("float", 8, "token", None, true),
            ),
            Scheme::Fp8Block => (
                "float-quantized",
                with(plain("float", 8, "block", None, false), "block_structure", json!([BLOCK, BLOCK])),
                plain("float", 8, "group", Some(128), true),
            ),
            Scheme::W8a8 => (
                "int-quantized",
                plain("int", 8, "channel", None, false),
                plain("int", 8, "token", None, true),
            ),
            Scheme::W4a16 => ("pack-quantized", plain("int", 4, "group", Some(128), false), Json::Null),
            Scheme::Mxfp4 => (
                "mxfp4-pack-quantized",
                power(plain("float", 4, "group", Some(32), false)),
                power(plain("float", 4, "group", Some(32), true)),
            ),
            Scheme::Nvfp4 => (
                "nvfp4-pack-quantized",
                with(
                    plain("float", 4, "tensor_group", Some(16), false),
                    "scale_dtype",
                    json!("torch.float8_e4m3fn"),
                ),
                Json::Null,
            ),
            Scheme::Sparse24 => return sparse("sparse-24-bitmask", "2:4"),
            Scheme::SparseBitmask => return sparse("sparse-bitmask", "unstructured"),
        };
        json!({
            "config_groups": {"group_0": {
                "format": format, "targets": ["Linear"], "weights": weights, "input_activations": activations,
                "output_activations": null,
            }},
            "format": format, "global_compression_ratio": null, "ignore": ignore, "kv_cache_scheme": null,
            "moe_sparsity_config": null, "quant_method": "compressed-tensors", "quantization_status": "compressed",
            "version": WRITTEN_AS,
        })
    }
}
