//! Reads a slot until it has seen so many rows, and tells the rate and the CPU time that it cost.
//!
//! Usage: `drain <connection string> <slot> <publication> <rows> [bulk]`. Confirms as it goes: the slot moves.

use std::time::{Duration, Instant};

use outflow_pgoutput::{
    Appetite, ConnectOptions, FeedbackOptions, Frame, ReplicationClient, StartOptions,
    message::Message,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [dsn, slot, publication, rows, rest @ ..] = &arguments[..] else {
        return Err("usage: drain <connection string> <slot> <publication> <rows> [bulk]".into());
    };
    let (wanted, bulk): (u64, bool) = (rows.parse()?, !rest.is_empty());
    let client = ReplicationClient::connect(&ConnectOptions::parse(dsn)?).await?;
    let start = StartOptions::new(slot, publication);
    let mut stream = client.start_replication(start, FeedbackOptions::default()).await?;
    if bulk {
        stream.set_appetite(Appetite::Bulk);
    }
    let (since, cpu) = (Instant::now(), cpu_time()?);
    let (mut rows, mut bytes, mut chunks) = (0_u64, 0_u64, 0_u64);
    while rows < wanted {
        let Some(chunk) = stream.next().await? else { break };
        chunks += 1;
        for frame in chunk.frames() {
            let Frame::XLogData { body, .. } = frame else { continue };
            match Message::decode(body)? {
                Message::Insert(insert) => {
                    rows += 1;
                    for value in insert.new.values() {
                        if let outflow_pgoutput::TupleValue::Text(text) = value {
                            bytes += u64::try_from(text.len())?;
                        }
                    }
                }
                Message::Commit(commit) => stream.confirm(commit.end_lsn)?,
                _ => {}
            }
        }
    }
    let (took, cpu) = (since.elapsed(), cpu_time()? - cpu);
    let per_row = u128::from(rows.max(1));
    println!(
        "{rows} rows, {bytes} bytes of values in {chunks} chunks, {took:.2?}: {} rows/s, {} ns CPU/row",
        u128::from(rows) * 1_000_000 / took.as_micros().max(1),
        cpu.as_nanos() / per_row,
    );
    stream.stop(Duration::from_secs(10)).await?;
    Ok(())
}

/// CPU time of this process, from its first field after the name on: user and system, in ticks of 10 ms.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = fields.skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}
