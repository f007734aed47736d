//! `outflow lab init`: the folder and the two tables.

use super::broker::RedisUrl;
use super::database::Database;
use super::folder::{DATABASE, Lab, quote};
use super::lesson::Lesson;

const SCHEMA: &str = include_str!("schema.sql");

const WHY: &str = "\
orders is the business. outbox is the news about it, in the same database: one transaction can
write both. status says what the relay has still to publish, and the partial index holds those
rows alone, so that a million published events cost the relay nothing.";

/// Runs the step.
pub(super) async fn run(dir: &std::path::Path, redis: Option<RedisUrl>) -> anyhow::Result<Lesson> {
    let names_redis = redis.is_some();
    let mut lab = Lab::create(dir, redis)?;
    let path = lab.path(DATABASE);
    let there = path.exists();
    let database = Database::create(path, SCHEMA)?;
    if names_redis {
        lab.broker().await?;
    }
    let file = quote(database.path());
    let lesson = Lesson::new("init", "a database with a business table and an outbox", WHY);
    let lesson = match there {
        true => lesson.said(format!("{} was there and is as it was", database.path().display())),
        false => lesson
            .said(format!("created {} with two tables:", database.path().display()))
            .said("  orders(id, sku, qty)")
            .said("  outbox(event_id, aggregate_id, seq, event_type, payload, status)")
            .said("  status is PENDING until it says PUBLISHED"),
    };
    Ok(lesson
        .fact("database", database.path().display().to_string())
        .fact("created", !there)
        .look(format!("sqlite3 {file} .schema"))
        .next(&lab, "dual-write"))
}
