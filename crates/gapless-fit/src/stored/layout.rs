//! The layout of one weight of a linear layer in the files of a quantised checkpoint: its tensors, with their shapes,
//! as the library that packs them makes them. `docs/internals/fit.md` names the code that each follows.

/// Values that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    Tensor,
    /// One output.
    Channel,
    /// So many inputs of an output.
    Group(u64),
    /// Outputs and inputs.
    Block(u64, u64),
}

impl Scales {
    /// Rows and columns of the tensor of scales.
    fn shape(self, outputs: u64, inputs: u64) -> [u64; 2] {
        match self {
            Scales::Tensor => [1, 1],
            Scales::Channel => [outputs, 1],
            Scales::Group(size) => [outputs, inputs.div_ceil(size.max(1))],
            Scales::Block(rows, columns) => [outputs.div_ceil(rows.max(1)), inputs.div_ceil(columns.max(1))],
        }
    }
}

/// The layout of a quantised weight. A group of 0 is the whole row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// AutoGPTQ and GPTQModel: values packed along the inputs, zero points packed along the outputs.
    Gptq { bits: u64, group: u64 },
    /// AutoAWQ's `gemm`: values and zero points packed along the outputs.
    AwqGemm { bits: u64, group: u64 },
    /// AutoAWQ's `gemv`: both packed along the inputs, groups padded to whole words.
    AwqGemv { bits: u64, group: u64 },
    /// bitsandbytes in 4 bits: blocks of 64, their scales in 32 bits or quantised once more.
    Bits4 { nested: bool },
    /// bitsandbytes in 8 bits (LLM.int8).
    Bits8,
    /// One byte a value, in floating point or not; `inputs` adds a scale of the layer's inputs.
    Bytes { scales: Scales, scale: ScaleType, zeros: bool, inputs: bool },
    /// compressed-tensors' `pack-quantized`: words of 32 bits along the inputs.
    Packed { bits: u64, scales: Scales, zeros: bool, index: bool },
    /// 4-bit floats with a scale of one byte for a group, and so many scales of 32 bits (NVFP4, MXFP4).
    Float4 { group: u64, globals: u64 },
    /// 6-bit floats with a scale of one byte for 32.
    Float6,
    /// compressed-tensors' `marlin-24`: half of the values, and their places.
    Marlin24 { bits: u64, group: u64 },
    /// HQQ: values packed in bytes, a scale and a zero for each group.
    Hqq { bits: u64, group: u64 },
    /// AQLM: codes for groups of inputs, and codebooks.
    Aqlm { books: u64, bits: u64, group: u64, outputs: u64 },
    /// EETQ: int8 with a scale for each output.
    Eetq,
    /// optimum-quanto: int8 and float8 with a scale for each output, int4 and int2 in groups with a shift.
    Quanto { bits: u64 },
    /// torchao's tiles for int4 products: inputs padded to 1024, outputs to 8; a scale and a zero for each group.
    Tiles4 { group: u64 },
    /// BitNet: four values a byte, one scale.
    BitNet,
    /// So many thousandths of a bit a value, if only that is known.
    Bits { thousandths: u64 },
}

/// The type of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    Byte,
    /// That of the model's other weights.
    Model,
    Float32,
}

/// One stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// After the module's name.
    pub name: &'static str,
    pub shape: Vec<u64>,
    /// Bytes of an element.
    pub width: u64,
}

impl Piece {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.width
    }
}

impl Layout {
    /// The tensors of a weight of `outputs` x `inputs` in a model whose other weights have `half` bytes an element.
    #[must_use]
    pub fn pieces(self, outputs: u64, inputs: u64, half: u64) -> Vec<Piece> {
        let weight = Weight { o: outputs, i: inputs, half };
        let (o, i) = (outputs, inputs);
        match self {
            Layout::Gptq { bits, group } => weight.gptq(bits, group),
            Layout::AwqGemm { bits, group } => weight.awq_gemm(bits, group),
            Layout::AwqGemv { bits, group } => weight.awq_gemv(bits, group),
            Layout::Bits4 { nested } => weight.bits4(nested),
            Layout::Bits8 => vec![piece("weight", &[o, i], 1), piece("SCB", &[o], 4)],
            Layout::Bytes { scales, scale, zeros, inputs } => weight.bytes(scales, scale, zeros, inputs),
            Layout::Packed { bits, scales, zeros, index } => weight.packed(bits, scales, zeros, index),
            Layout::Float4 { group, globals } => weight.float4(group, globals),
            Layout::Float6 => vec![
                piece("weight_packed", &[o, (i * 6).div_ceil(8)], 1),
                piece("weight_scale", &[o, i.div_ceil(32)], 1),
            ],
            Layout::Marlin24 { bits, group } => weight.marlin24(bits, group),
            Layout::Hqq { bits, group } => weight.hqq(bits, group),
            Layout::Aqlm { books, bits, group, outputs } => weight.aqlm(books, bits, group, outputs),
            Layout::Eetq => vec![piece("weight", &[i, o], 1), piece("weight_scales", &[o], 2)],
            Layout::Quanto { bits } => weight.quanto(bits),
            Layout::Tiles4 { group } => weight.tiles4(group),
            Layout::Bits { thousandths } => {
                let bytes = (u128::from(o * i) * u128::from(thousandths)).div_ceil(8000) as u64;
                vec![piece("weight", &[bytes], 1)]
            }
            Layout::BitNet => {
                vec![piece("weight", &[o.div_ceil(4), i], 1), piece("weight_scale", &[1], half)]
            }
        }
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(self, outputs: u64, inputs: u64, half: u64) -> u64 {
        self.pieces(outputs, inputs, half).iter().map(Piece::bytes).sum()
    }

    /// Bits a value, scales included, of a large weight.
    #[must_use]
    pub fn bits(self) -> f64 {
        self.bytes(4096, 4096, 2) as f64 * 8.0 / (4096.0 * 4096.0)
    }
}

fn piece(name: &'static str, shape: &[u64], width: u64) -> Piece {
    Piece { name, shape: shape.to_vec(), width }
}

/// Words of 32 bits for so many values.
fn words(values: u64, bits: u64) -> u64 {
    (values * bits).div_ceil(32)
}

/// A weight of `o` outputs and `i` inputs, in a model whose other weights have `half` bytes an element.
#[derive(Clone, Copy)]
struct Weight {
    o: u64,
    i: u64,
    half: u64,
}

impl Weight {
    fn groups(self, group: u64) -> u64 {
        if group == 0 { 1 } else { self.i.div_ceil(group) }
    }

    fn gptq(self, bits: u64, group: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        vec![
            piece("qweight", &[words(i, bits), o], 4),
            piece("qzeros", &[self.groups(group), words(o, bits)], 4),
            piece("scales", &[self.groups(group), o], 2),
            piece("g_idx", &[i], 4),
        ]
    }

    fn awq_gemm(self, bits: u64, group: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        vec![
            piece("qweight", &[i, words(o, bits)], 4),
            piece("qzeros", &[self.groups(group), words(o, bits)], 4),
            piece("scales", &[self.groups(group), o], 2),
        ]
    }

    fn awq_gemv(self, bits: u64, group: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let pack = 32 / bits.max(1);
        let wide = match group {
            64 => 2,
            32 => 4,
            _ => 1,
        };
        let zeros = self.groups(group).div_ceil(pack).div_ceil(wide) * wide;
        vec![
            piece("qweight", &[o, words(i, bits)], 4),
            piece("qzeros", &[o, zeros], 4),
            piece("scales", &[o, zeros * pack], 2),
        ]
    }

    fn bits4(self, nested: bool) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let blocks = (o * i).div_ceil(64);
        let mut list = vec![
            piece("weight", &[(o * i).div_ceil(2), 1], 1),
            piece("weight.absmax", &[blocks], if nested { 1 } else { 4 }),
            piece("weight.quant_map", &[16], 4),
        ];
        if nested {
            list.push(piece("weight.nested_absmax", &[blocks.div_ceil(256)], 4));
            list.push(piece("weight.nested_quant_map", &[256], 4));
        }
        // A little JSON: names, shape, offset.
        list.push(piece("weight.quant_state.bitsandbytes__nf4", &[if nested { 120 } else { 80 }], 1));
        list
    }

    fn bytes(self, scales: Scales, scale: ScaleType, zeros: bool, inputs: bool) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let shape = scales.shape(o, i);
        let mut list = vec![
            piece("weight", &[o, i], 1),
            piece(
                "weight_scale",
                &shape,
                match scale {
                    ScaleType::Byte => 1,
                    ScaleType::Model => self.half,
                    ScaleType::Float32 => 4,
                },
            ),
        ];
        if zeros {
            list.push(piece("weight_zero_point", &shape, 1));
        }
        if inputs {
            list.push(piece("input_scale", &[1], if scale == ScaleType::Model { self.half } else { 4 }));
        }
        list
    }

    fn packed(self, bits: u64, scales: Scales, zeros: bool, index: bool) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let [rows, columns] = scales.shape(o, i);
        let mut list = vec![
            piece("weight_packed", &[o, words(i, bits)], 4),
            piece("weight_scale", &[rows, columns], self.half),
            piece("weight_shape", &[2], 8),
        ];
        if zeros {
            list.push(piece("weight_zero_point", &[words(rows, bits), columns], 4));
        }
        if index {
            list.push(piece("weight_g_idx", &[i], 4));
        }
        list
    }

    fn float4(self, group: u64, globals: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let mut list = vec![
            piece("weight_packed", &[o, i.div_ceil(2)], 1),
            piece("weight_scale", &[o, i.div_ceil(group.max(1))], 1),
        ];
        if globals > 0 {
            list.push(piece("global_scales", &[globals], 4));
        }
        list
    }

    fn marlin24(self, bits: u64, group: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        vec![
            piece("weight_packed", &[i.div_ceil(32), words(o * 16, bits)], 4),
            piece("scale_packed", &[self.groups(group), o], self.half),
            piece("meta", &[i.div_ceil(32), 2 * o], 2),
        ]
    }

    fn hqq(self, bits: u64, group: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let n = o * i;
        let count = if group == 0 { o } else { n.div_ceil(group) };
        // Three bits go ten to a word.
        let packed = if bits == 3 { n.div_ceil(10) * 4 } else { (n * bits).div_ceil(8) };
        vec![
            piece("W_q", &[packed], 1),
            piece("scale", &[count, 1], self.half),
            piece("zero", &[count, 1], self.half),
        ]
    }

    fn aqlm(self, books: u64, bits: u64, group: u64, outputs: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let (rows, columns) = (o.div_ceil(outputs.max(1)), i.div_ceil(group.max(1)));
        vec![
            piece("codes", &[rows, columns, books], if bits <= 8 { 1 } else { 2 }),
            piece("codebooks", &[books, 1 << bits.min(24), outputs.max(1), group.max(1)], self.half),
            piece("scales", &[rows, 1, 1, 1], self.half),
        ]
    }

    fn quanto(self, bits: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        if bits >= 8 {
            return vec![piece("weight._data", &[o, i], 1), piece("weight._scale", &[o, 1], self.half)];
        }
        let count = (o * i).div_ceil(128);
        vec![
            piece("weight._data._data", &[(o * i * bits).div_ceil(8)], 1),
            piece("weight._scale", &[count, 1], self.half),
            piece("weight._shift", &[count, 1], self.half),
        ]
    }

    fn tiles4(self, group: u64) -> Vec<Piece> {
        let Weight { o, i, .. } = self;
        let (rows, columns) = (o.next_multiple_of(8), i.next_multiple_of(1024));
        vec![
            piece("weight.packed", &[rows, columns.div_ceil(2)], 1),
            piece("weight.scale_and_zero", &[columns.div_ceil(group.max(1)), rows, 2], 2),
        ]
    }
}
