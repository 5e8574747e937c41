//! Cross entropy.

use crate::eager::sim::Sim;
use crate::eager::tensor::Tensor;
use crate::model::Dtype;

impl Sim {
    /// `cross_entropy`: the log-softmax is kept, in the logits' type; autocast takes the loss itself in 32 bits.
    pub fn cross_entropy(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let mut op = self.op("_log_softmax", &[logits]);
        let probabilities = self.like(logits);
        op.save(&probabilities);
        let dtype = logits.dtype;
        let probabilities = op.finish(probabilities, move |s, c| {
            s.begin("_log_softmax_backward_data");
            vec![Some(s.alloc(c.grad().n, dtype))]
        });
        let probabilities = self.for_full(&probabilities);
        let dtype = probabilities.dtype;
        let mut op = self.op("nll_loss_forward", &[&probabilities]);
        op.save(&probabilities);
        op.save(labels);
        let loss = self.alloc(1, dtype);
        let weight = self.alloc(1, Dtype::F32);
        op.save(&weight);
        let n = probabilities.n;
        op.finish(loss, move |s, _| {
            s.begin("nll_loss_backward");
            vec![Some(s.alloc(n, dtype))]
        })
    }

    /// The loss of Hugging Face's causal models: logits in 32 bits, labels shifted by one.
    pub fn causal_loss(&self, logits: &Tensor, tokens: u64, batch: u64) -> Tensor {
        let logits = self.to(logits, Dtype::F32);
        self.begin("constant_pad_nd");
        let padded = self.alloc(tokens + batch, Dtype::I64);
        let labels = self.alloc(tokens, Dtype::I64);
        let loss = self.cross_entropy(&logits, &labels);
        drop(padded);
        loss
    }
}
