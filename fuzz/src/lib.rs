//! What the binaries have in common: a target's name becomes libFuzzer's entry points. Half of all
//! changes to inputs are libFuzzer's own, the others the target's, which know what the bytes mean.

pub use libfuzzer_sys;
pub use prove;

use prove::fuzz::Target;
use terrapin_model::Random;

/// The target of that name. Panics when there is none.
#[must_use]
pub fn target(name: &str) -> &'static Target {
    match prove::fuzz::target(name) {
        Some(target) => target,
        None => panic!("no target {name}"),
    }
}

/// Changes the first `size` bytes of `data`, which has room for `bytes_max`; returns how many there
/// are then.
pub fn change(name: &str, data: &mut [u8], size: usize, bytes_max: usize, seed: u32) -> usize {
    if seed & 1 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, bytes_max);
    }
    let mut input = data[..size].to_vec();
    (target(name).change)(&mut input, &mut Random::new(u64::from(seed)), bytes_max);
    let size = input.len().min(bytes_max);
    data[..size].copy_from_slice(&input[..size]);
    size
}

/// libFuzzer's entry points for the target of a name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            ($crate::target($name).run)(data);
        });
        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8],
                                              size: usize,
                                              max_size: usize,
                                              seed: u32| {
            $crate::change($name, data, size, max_size, seed)
        });
    };
}
