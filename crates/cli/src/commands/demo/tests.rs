use super::*;

#[test]
fn only_a_distance_that_does_not_fit_is_left_out() {
    assert!(too_large(Ok(())).unwrap().is_none());
    for kind in [ErrorKind::OutOfMemory, ErrorKind::InvalidArgument] {
        assert!(too_large(Err(Error::new(kind, "no"))).unwrap().is_some());
    }
    for kind in [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Corrupt] {
        let error = too_large(Err(Error::new(kind, "no"))).unwrap_err();
        assert_eq!(error.kind(), kind);
    }
}

#[test]
fn a_falling_count_of_the_system_counts_as_zero() {
    let before = Usage {
        device_bytes_written: u64::MAX,
        ..Usage::default()
    };
    assert_eq!(device_bytes_since(&before), 0);
}
