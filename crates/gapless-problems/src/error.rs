//! Errors of files that are not planning problems.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are wrong.
    #[error(transparent)]
    Format(#[from] gapless_formats::Error),
    /// The buffers are not a problem.
    #[error(transparent)]
    Problem(#[from] gapless_plan::Error),
    #[error("not a list of buffers in JSON: {what}")]
    Json { what: String },
    #[error("buffers[{position}] ({id}): {what}")]
    JsonBuffer { position: usize, id: String, what: String },
    #[error("byte {byte}: {what}; is the file a complete ONNX model?")]
    OnnxBytes { byte: usize, what: String },
    #[error("the ONNX model: {what}")]
    Onnx { what: String },
    #[error(
        "{unknown} of {tensors} tensors have no known size: {first}; give the dimensions that have a name \
         (--dim batch=8), or run ONNX shape inference (onnx.shape_inference.infer_shapes) and save the model anew"
    )]
    OnnxShapes { unknown: usize, tensors: usize, first: String },
}
