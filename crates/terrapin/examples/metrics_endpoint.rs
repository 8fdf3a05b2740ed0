//! An endpoint that Prometheus and other collectors scrape, in some twenty lines of the standard
//! library: `cargo run --example metrics_endpoint`, then `curl http://127.0.0.1:9464/metrics`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use terrapin::Database;

/// Answers one request with the figures of the database.
fn answer(mut client: TcpStream, database: &Database) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let _ = client.read(&mut request)?; // every path has the same answer
    let text = database.metrics().openmetrics();
    write!(
        client,
        "HTTP/1.1 200 OK\r\n\
         Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join("terrapin-metrics-endpoint");
    let database = Database::open(&directory)?;
    let fruit = database.keyspace("fruit")?;
    for number in 0..10_000_u32 {
        fruit.put(number.to_be_bytes(), "sweet")?;
    }
    fruit.get(7_u32.to_be_bytes())?;
    database.checkpoint()?;

    let listener = TcpListener::bind("127.0.0.1:9464")?;
    println!("http://{}/metrics", listener.local_addr()?);
    for client in listener.incoming() {
        if let Err(error) = client.and_then(|client| answer(client, &database)) {
            eprintln!("a scrape failed: {error}");
        }
    }
    Ok(())
}
