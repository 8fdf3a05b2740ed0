//! Threads of clients.

use terrapin_base::{Error, Result};

/// Runs a client in each of some threads. Returns what they returned, in the order of their
/// numbers, or the first error in this order, after all have ended. A panic is `Internal`.
///
/// ```
/// let squares = terrapin_bench::in_threads(3, |number| Ok(number * number)).unwrap();
/// assert_eq!(squares, [0, 1, 4]);
/// ```
pub fn in_threads<R: Send>(
    threads: usize,
    client: impl Fn(usize) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let client = &client;
    let outcomes: Vec<Result<R>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || client(number)))
            .collect();
        let panicked = |_| Err(Error::internal("a client panicked"));
        clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(panicked))
            .collect()
    });
    outcomes.into_iter().collect()
}
