//! Writes a new corpus for the fuzz targets, from stores of this build: `fuzz/corpus/TARGET/NAME`.

use std::fs;
use std::io;

use prove::fuzz::seeds;
use prove::fuzz::template::folder;

fn main() -> io::Result<()> {
    // The other inputs are cut out of these stores, which are written first.
    let stores = seeds::stores().map_err(io::Error::other)?;
    write("directory", stores)?;
    write("superblock", seeds::superblocks())?;
    write("catalog", seeds::catalogs())?;
    write("node", seeds::all_nodes())?;
    write("tiered", seeds::tiered())?;
    write("map", seeds::maps())?;
    write("trie", seeds::tries())?;
    write("group", seeds::groups())?;
    write("block", seeds::blocks())?;
    write("filter", seeds::filters())?;
    write("maplet", seeds::maplets())?;
    write("handle", seeds::handles())?;
    write("value", seeds::value_pages())?;
    write("table", seeds::tables())?;
    write("put-large", seeds::large_puts())?;
    write("log", seeds::logs())?;
    write("ranges", seeds::ranges())
}

fn write(target: &str, inputs: seeds::Inputs) -> io::Result<()> {
    let directory = folder().join("corpus").join(target);
    fs::create_dir_all(&directory)?;
    for (name, input) in inputs {
        println!("{target}/{name}: {} bytes", input.len());
        fs::write(directory.join(name), input)?;
    }
    Ok(())
}
