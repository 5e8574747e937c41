//! Tensors at given addresses, by DLPack: PyTorch takes the memory, and calls a deleter when it is done with it.

use crate::guard::guarded;
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// `DLManagedTensor` of DLPack before version 1.0, which every release of PyTorch takes.
#[repr(C)]
#[derive(Debug)]
pub struct ManagedTensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    dimensions: i32,
    kind: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    offset: u64,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut ManagedTensor),
}

const CUDA: i32 = 2;
const UNSIGNED: u8 = 1;

/// Data that a tensor needs until its deleter runs.
struct Kept {
    shape: [i64; 1],
    _owner: Arc<dyn Any + Send + Sync>,
}

/// A tensor of `size` bytes at `addr`. It keeps `owner` until its deleter is called, by any thread.
pub fn bytes_at(addr: u64, size: u64, device: i32, owner: Arc<dyn Any + Send + Sync>) -> *mut ManagedTensor {
    let kept = Box::into_raw(Box::new(Kept { shape: [size as i64], _owner: owner }));
    // SAFETY: the box was made just now, and stays until the deleter runs.
    let shape = unsafe { (*kept).shape.as_mut_ptr() };
    Box::into_raw(Box::new(ManagedTensor {
        data: addr as *mut c_void,
        device_type: CUDA,
        device,
        dimensions: 1,
        kind: UNSIGNED,
        bits: 8,
        lanes: 1,
        shape,
        strides: std::ptr::null_mut(),
        offset: 0,
        context: kept.cast(),
        deleter: drop_tensor,
    }))
}

/// The deleter of a tensor of [`bytes_at`].
///
/// # Safety
/// `tensor` came from [`bytes_at`], and is not used afterwards.
pub(crate) unsafe extern "C" fn drop_tensor(tensor: *mut ManagedTensor) {
    guarded((), || {
        // SAFETY: `bytes_at` made both boxes, and a tensor is dropped once: by PyTorch, or by a caller that kept it.
        unsafe {
            let tensor = Box::from_raw(tensor);
            drop(Box::from_raw(tensor.context.cast::<Kept>()));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_keeps_its_owner() {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(5);
        let tensor = bytes_at(0x1000, 77, 0, owner.clone());
        assert_eq!(Arc::strong_count(&owner), 2);
        // SAFETY: it was made just now, and is dropped once.
        unsafe {
            assert_eq!(((*tensor).data as u64, *(*tensor).shape), (0x1000, 77));
            drop_tensor(tensor);
        }
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
