//! Lists the SQL files of the repository for `outflow init`, so that a new file needs no other
//! edit.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// `(name of the side, folder under sql/)`.
const SIDES: [(&str, &str); 5] = [
    ("Producer", "producer"),
    ("Polling", "polling"),
    ("Consumer", "consumer"),
    ("DemoProducer", "demo/producer"),
    ("DemoConsumer", "demo/consumer"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../sql");
    let mut code = String::from("&[\n");
    for (side, folder) in SIDES {
        let folder = root.join(folder);
        // a folder that is not there yet is watched through its parent
        println!("cargo:rerun-if-changed={}", folder.parent().unwrap_or(&root).display());
        if !folder.is_dir() {
            continue;
        }
        println!("cargo:rerun-if-changed={}", folder.display());
        let mut last = 0;
        for path in sql_files(&folder)? {
            let (version, name) = split(&path)?;
            if version <= last {
                return Err(format!("{}: number {last:04} stands twice", path.display()).into());
            }
            last = version;
            writeln!(
                code,
                "Migration {{ side: Side::{side}, version: {version}, name: {name:?}, sql: include_str!({:?}) }},",
                path.canonicalize()?
            )?;
        }
    }
    code.push(']');
    fs::write(Path::new(&std::env::var("OUT_DIR")?).join("migrations.rs"), code)?;
    Ok(())
}

fn sql_files(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // a folder may hold other SQL too, such as a projection
        if name.ends_with(".sql") && name.starts_with(|first: char| first.is_ascii_digit()) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// `0002_outbox.sql` is version 2, `outbox`.
fn split(path: &Path) -> Result<(i32, String), Box<dyn Error>> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let (number, name) = stem.split_once('_').ok_or("expected NNNN_name.sql")?;
    Ok((number.parse()?, name.to_owned()))
}
