//! A model before anything runs: numbers of its architecture in one vocabulary, from whichever file or name they came.

use crate::stored::Stored;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    /// Both 8-bit floating formats.
    F8,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 8,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F8 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }
}

/// One stored tensor, as a file's header gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    pub name: String,
    pub shape: Vec<u64>,
    /// As stored; block formats of GGUF have none.
    pub dtype: Option<Dtype>,
    /// Bytes in the file.
    pub bytes: u64,
}

/// A model, as far as its source describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name in output.
    pub name: String,
    /// The network that runs: `None` if the source gives weights alone.
    pub architecture: Option<Architecture>,
    /// The stored tensors, if headers were read: exact.
    pub weights: Option<Vec<Weight>>,
    /// The format of quantised weights, if the source names one.
    pub stored: Option<Stored>,
    /// Parts that the reader could not use, and assumptions that it made, in words.
    pub notes: Vec<String>,
}

/// Architectures, by implementation.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// Hugging Face transformers: a stack of causal blocks with a language-model head.
    Decoder(Decoder),
    /// Hugging Face transformers: BERT and its like, with a masked-language-model head.
    Encoder(Encoder),
    /// Hugging Face transformers: T5.
    EncoderDecoder(EncoderDecoder),
    /// torchvision's models, and ViT.
    Vision(Vision),
    /// A graph of operators as exported (torch.export, ONNX).
    Graph(Box<Graph>),
    /// Hugging Face transformers: parameters known one by one, a forward pass that is not simulated.
    Counted(Box<Counted>),
}

/// The role of a parameter: optimizers treat them apart (no decay on norms and biases, Muon on matrices only).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rows that tokens look up.
    Embedding,
    /// Rows that positions look up, and other learned tokens.
    Positions,
    /// Weight of a norm, or a per-channel scale.
    Norm,
    Bias,
    /// Weight of a linear layer.
    Matrix,
    /// Weights of all experts of a layer in one tensor.
    Expert,
    /// Chooses experts.
    Router,
    /// From the last hidden state to the vocabulary or the classes.
    Head,
    /// Weight of a convolution.
    Convolution,
    /// Of a graph, whose names tell nothing.
    Other,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<u64>,
    pub role: Role,
}

impl Parameter {
    /// Elements. Readers refuse architectures in which this would overflow.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// A model whose parameters are exact and whose activations are not modelled.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    pub model_type: String,
    pub parameters: Vec<Parameter>,
    /// First parameter of each block and the end of its range, in order.
    pub blocks: Vec<(usize, usize)>,
    /// Set if it generates text.
    pub text: Option<Text>,
    /// Dtype that the source names for its weights.
    pub dtype: Option<Dtype>,
}

/// The numbers that serving a model of text depends on, beside its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub vocab: u64,
    pub max_positions: u64,
    /// 0 without experts.
    pub experts: u64,
    pub top_k: u64,
    /// The cache of each block for the tokens before, in order.
    pub cache: Vec<LayerCache>,
}

/// The cache of one block while generating, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCache {
    /// Of each token.
    pub token: u64,
    /// Tokens that it looks back; `None` for all.
    pub window: Option<u64>,
    /// Of each sequence, however long (linear attention, convolutions).
    pub state: u64,
}

/// The implementation whose forward is simulated: each saves other tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecoderStyle {
    Gpt2,
    GptNeox,
    Opt,
    Llama,
    Mistral,
    Mixtral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    DeepseekV2,
    DeepseekV3,
}

impl DecoderStyle {
    /// True if the feed-forward block has a gate: three matrices instead of two. Those that have one have RMS norms;
    /// the others have layer norms, with biases.
    #[must_use]
    pub fn is_gated(self) -> bool {
        use DecoderStyle::*;
        match self {
            Gpt2 | GptNeox | Opt => false,
            Llama | Mistral | Mixtral | Qwen2 | Qwen3 | Qwen3Moe | Gemma | Gemma2 | Gemma3 | Phi3
            | DeepseekV2 | DeepseekV3 => true,
        }
    }

    /// True if the queries and keys of each head are normed.
    #[must_use]
    pub fn has_head_norms(self) -> bool {
        use DecoderStyle::*;
        match self {
            Qwen3 | Qwen3Moe | Gemma3 => true,
            Gpt2 | GptNeox | Opt | Llama | Mistral | Mixtral | Qwen2 | Gemma | Gemma2 | Phi3 | DeepseekV2
            | DeepseekV3 => false,
        }
    }
}

/// The implementation of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Attention {
    /// `scaled_dot_product_attention`, with the kernel that it chooses.
    #[default]
    Sdpa,
    /// Scores as a tensor.
    Eager,
    /// The flash-attention package.
    Flash,
}

/// The function between the two matrices of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// One operator.
    Gelu,
    /// GPT-2's, written out in five operators.
    GeluNew,
    /// One operator (`gelu_pytorch_tanh`).
    GeluTanh,
    Relu,
    Silu,
    Quick,
}

/// A causal language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    pub style: DecoderStyle,
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Of queries and keys: with latent attention, both parts of them together.
    pub head_dim: u64,
    /// Elements of a head that rotate; 0 if positions are learned.
    pub rotary_dim: u64,
    /// Width of the embedding, if it is projected to the hidden size and back (OPT 350M).
    pub embed_dim: Option<u64>,
    /// Inner size of the dense feed-forward block.
    pub intermediate: u64,
    pub vocab: u64,
    pub max_positions: u64,
    /// True if the head is the embedding.
    pub tied: bool,
    pub activation: Activation,
    /// Biases on the query, key and value projections; on the output projection; in the feed-forward block.
    pub qkv_bias: bool,
    pub out_bias: bool,
    pub mlp_bias: bool,
    /// Norms stand after the sum with the residual, and there is no last one (OPT 350M).
    pub post_norm: bool,
    /// Attention and feed-forward block read the same input (GPT-NeoX).
    pub parallel_residual: bool,
    /// Dropout of the embedding, of attention probabilities, of the output that is added to the residual.
    pub embed_dropout: f64,
    pub attention_dropout: f64,
    pub residual_dropout: f64,
    pub attention: Attention,
    /// Tokens that a sliding layer looks back; and which layers slide: every layer if `sliding_pattern` is 1, all but
    /// every n-th if it is n.
    pub sliding_window: Option<u64>,
    pub sliding_pattern: u64,
    /// Soft caps on attention scores and on logits (Gemma 2).
    pub attention_softcap: bool,
    pub logit_softcap: bool,
    pub moe: Option<Moe>,
    pub mla: Option<Mla>,
    /// Dtype that the source names for its weights.
    pub dtype: Option<Dtype>,
}

/// Experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    pub experts: u64,
    /// Experts of one token.
    pub top_k: u64,
    pub expert_intermediate: u64,
    /// Experts that every token visits, and the inner size of all of them together.
    pub shared: u64,
    pub shared_intermediate: u64,
    /// Layers at the beginning whose feed-forward block is dense.
    pub dense_layers: u64,
    /// Groups of experts that routing chooses first (DeepSeek).
    pub groups: u64,
    pub top_groups: u64,
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    pub q_rank: Option<u64>,
    pub kv_rank: u64,
    pub nope_dim: u64,
    pub rope_dim: u64,
    pub value_dim: u64,
}

/// BERT and its like.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    pub style: EncoderStyle,
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub intermediate: u64,
    pub vocab: u64,
    pub max_positions: u64,
    pub token_types: u64,
    pub tied: bool,
    pub activation: Activation,
    pub hidden_dropout: f64,
    pub attention_dropout: f64,
    pub attention: Attention,
    pub dtype: Option<Dtype>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderStyle {
    Bert,
    Roberta,
}

/// T5.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderDecoder {
    pub encoder_layers: u64,
    pub decoder_layers: u64,
    pub hidden: u64,
    pub heads: u64,
    pub head_dim: u64,
    pub intermediate: u64,
    /// Two matrices before the activation (T5 1.1).
    pub gated: bool,
    pub activation: Activation,
    pub vocab: u64,
    pub relative_buckets: u64,
    pub tied: bool,
    pub dropout: f64,
    pub attention: Attention,
    pub dtype: Option<Dtype>,
}

/// Image models: torchvision's, by their own names, and Hugging Face's ViT.
#[derive(Clone, Debug, PartialEq)]
pub enum Vision {
    /// Residual networks: blocks of each stage, bottleneck or basic, groups and base width.
    ResNet { blocks: Vec<u64>, bottleneck: bool, groups: u64, base_width: u64, classes: u64 },
    /// Vision transformers: torchvision's, or Hugging Face's.
    Vit {
        layers: u64,
        hidden: u64,
        heads: u64,
        intermediate: u64,
        patch: u64,
        image: u64,
        classes: u64,
        hugging_face: bool,
    },
    /// ConvNeXt: channels and blocks of each stage.
    ConvNext { channels: Vec<u64>, blocks: Vec<u64>, classes: u64 },
    /// VGG: channels of each convolution, 0 for a pooling; batch norm.
    Vgg { layers: Vec<u64>, batch_norm: bool, classes: u64 },
    /// MobileNet and EfficientNet.
    Inverted(Inverted),
    /// DenseNet: layers of each block, channels that each of them adds, channels of the first convolution.
    DenseNet { blocks: Vec<u64>, growth: u64, stem: u64, classes: u64 },
}

/// A network of inverted residuals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inverted {
    pub family: InvertedFamily,
    /// Channels of the first convolution.
    pub stem: u64,
    pub blocks: Vec<InvertedBlock>,
    /// Channels of the last convolution.
    pub last: u64,
    /// Between the two layers of MobileNetV3's classifier.
    pub inner: u64,
    pub classes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvertedFamily {
    MobileNetV2,
    MobileNetV3,
    EfficientNet,
}

/// Expand by 1 x 1, convolve each channel by itself, weigh channels, project by 1 x 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvertedBlock {
    /// The stage it is in, from 0, and its place there.
    pub stage: u64,
    pub place: u64,
    pub inputs: u64,
    /// Equal to `inputs` if nothing is expanded.
    pub expanded: u64,
    pub outputs: u64,
    pub kernel: u64,
    pub stride: u64,
    /// Channels of the squeeze that weighs channels; 0 without one.
    pub squeeze: u64,
    /// True for Hardswish; else the activation is the family's.
    pub hard: bool,
}

impl InvertedBlock {
    /// True if its input is added to its output.
    #[must_use]
    pub fn adds(&self) -> bool {
        self.stride == 1 && self.inputs == self.outputs
    }
}

/// A graph of operators with static shapes.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Graph {
    pub tensors: Vec<GraphTensor>,
    pub nodes: Vec<GraphNode>,
    /// Tensors by place in `tensors`.
    pub inputs: Vec<u32>,
    pub parameters: Vec<u32>,
    /// Tensors that live as long as the parameters and take no gradient.
    pub buffers: Vec<u32>,
    pub outputs: Vec<u32>,
    /// True if the graph holds the backward pass too.
    pub joint: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GraphTensor {
    pub name: String,
    pub shape: Vec<u64>,
    /// In elements; empty means contiguous.
    pub strides: Vec<u64>,
    pub dtype: Dtype,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GraphNode {
    /// The operator's name without overload: `aten.linear`, or `onnx.MatMul`.
    pub op: String,
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
    /// Integer attributes by name, if they decide shapes or memory.
    pub attributes: Vec<(String, Vec<i64>)>,
}
