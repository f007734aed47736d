//! A handler in Rust, and its test: `cargo test -p outflow-inbox --example turnover`.
//!
//! Run it against servers of yours (the tables of the inbox are made by `outflow init --consumer URL`):
//! `cargo run -p outflow-inbox --example turnover -- postgres://localhost/books redis://localhost`.

use outflow_inbox::{
    Consumer, ConsumerOptions, Delivery, Handler, HandlerError, Start, Transaction, connect_no_tls,
};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS turnover (customer text PRIMARY KEY, amount bigint NOT NULL)";

struct Turnover;

impl Handler for Turnover {
    async fn apply(
        &mut self,
        tx: &Transaction<'_>,
        events: &[Delivery],
    ) -> Result<(), HandlerError> {
        for event in events {
            let add = "INSERT INTO turnover AS t VALUES ($1, ($2::text::jsonb ->> 'total')::bigint)
                       ON CONFLICT (customer) DO UPDATE SET amount = t.amount + excluded.amount";
            tx.execute(add, &[&event.entry.event.aggregate_id, &event.payload_text()]).await?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, redis] = arguments.as_slice() else {
        return Err("expected the URLs of PostgreSQL and of Redis".into());
    };
    let connect = connect_no_tls(database);
    connect().await?.batch_execute(TABLE).await?;
    let options = ConsumerOptions {
        consumer_id: "turnover".to_owned(),
        redis: redis.parse()?,
        streams: vec!["outflow:customer".to_owned()],
        from: Some(Start::Beginning),
        ..ConsumerOptions::default()
    };
    let shutdown = tokio_util::sync::CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move { tokio::signal::ctrl_c().await.map(|()| stop.cancel()) });
    let summary = Consumer::new(options.validate()?, connect, Turnover).run(shutdown).await?;
    println!("{summary:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outflow_inbox::testkit::{TestKit, event};
    use outflow_sandbox::{shared_postgres, shared_redis};

    #[tokio::test]
    async fn every_order_counts_once_whatever_happens() {
        let database = shared_postgres().await.unwrap().fresh_database().await.unwrap();
        let redis = shared_redis().await.unwrap().url();
        let mut kit = TestKit::start(&database.url, &redis, || Turnover).await.unwrap();
        kit.sql.batch_execute(TABLE).await.unwrap();
        let order = |id: &str| event(id).aggregate("customer", "ada").payload(r#"{"total": 5}"#);

        kit.feed(&[order("o-1"), order("o-2")]).await.unwrap();
        assert_eq!(kit.feed(&[order("o-1")]).await.unwrap().duplicates, 1);
        assert_eq!(kit.feed(&[order("o-1").payload("{}")]).await.unwrap().conflicts, 1);
        assert_eq!(kit.crash_in_transaction(&[order("o-3")]).await.unwrap().applied, 1);
        assert_eq!(kit.crash_before_acknowledging(&[order("o-4")]).await.unwrap().duplicates, 1);

        assert_eq!(kit.applied().await.unwrap(), ["o-1", "o-2", "o-3", "o-4"]);
        assert_eq!(kit.value::<i64>("SELECT amount FROM turnover").await.unwrap(), 20);
    }
}
