use std::fs;
use std::time::Duration;

use outflow_inbox::Start;
use outflow_relay::config::{Column, Durability, EntryIdMode};

use super::*;

/// A configuration of `toml` alone.
fn load(toml: &str) -> Result<Config, Problems> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.toml");
    fs::write(&file, toml).unwrap();
    Config::load(&Sources { file: Some(file), ..Sources::default() })
}

/// The one problem of `toml`, as `key: message` without the origin.
fn problem(toml: &str) -> String {
    let Problems(problems) = load(toml).unwrap_err();
    let [Problem { subject, message }] = problems.as_slice() else {
        panic!("expected one problem: {problems:?}")
    };
    let subject = subject.split(" (/").next().unwrap();
    format!("{subject}: {message}")
}

fn with_flags(flags: &[(&str, &str)]) -> Result<Config, Problems> {
    let flags = flags.iter().map(|(key, value)| ("--set".into(), (*key).into(), (*value).into()));
    Config::load(&Sources { flags: flags.collect(), ..Sources::default() })
}

#[test]
fn the_defaults_are_valid() {
    let config = load("").unwrap();
    assert_eq!(config.source.slot, "outflow");
    assert_eq!(config.source.table.to_string(), "outflow.outbox");
    assert_eq!(config.sink.batch_bytes, 1 << 20);
    assert_eq!(config.sink.entry_id, EntryIdMode::Lsn);
    assert_eq!(config.consumer.options.block, Duration::from_secs(1));
    assert!(config.listen.is_none());
}

#[test]
fn every_kind_of_bad_value_names_key_value_and_what_is_allowed() {
    for (toml, expected) in [
        ("connector = \"a b\"", "connector = \"a b\": expected 1 to 63 letters"),
        ("connector = 1", "connector = 1: expected a text in quotes"),
        ("[source]\nurl = \"postgres://h:x/d\"", "source.url = \"postgres://h:x/d\": invalid"),
        ("[source]\ntable = \"a.b.c\"", "source.table = \"a.b.c\": expected schema.table"),
        ("[source]\nslot = \"A\"", "source.slot = \"A\": expected 1 to 63 lower-case"),
        (
            "[source]\nsnapshot = \"no\"",
            "source.snapshot = \"no\": expected \"initial\" or \"never\"",
        ),
        (
            "[source]\nmax_payload = \"1GB\"",
            "source.max_payload = \"1GB\": expected a size from 1KiB",
        ),
        (
            "[source]\nmax_payload = \"1GiB\"",
            "source.max_payload = \"1GiB\": expected a size from 1KiB",
        ),
        (
            "[source]\nstatus_interval = \"1m\"",
            "source.status_interval = \"1m\": expected a duration",
        ),
        ("[source]\nstatus_interval = 10", "source.status_interval = 10: expected a duration from"),
        ("[source]\norder_by = 1", "source.order_by = 1: expected a list of texts"),
        (
            "[source]\norder_by = [\"a\", 1]",
            "source.order_by = [\"a\", 1]: expected texts in the list",
        ),
        ("[source.columns]\npayload = \"\"", "source.columns.payload = \"\": expected a name"),
        (
            "[sink]\nurl = \"memcached://h\"",
            "sink.url = \"memcached://h\": the URL cannot be read; expected redis://",
        ),
        (
            "[sink]\nbatch_entries = 0",
            "sink.batch_entries = 0: expected a whole number from 1 to 100000",
        ),
        ("[sink]\nbatch_entries = 1.5", "sink.batch_entries = (a float): expected a whole number"),
        (
            "[sink]\nbatch_entries = \"many\"",
            "sink.batch_entries = \"many\": expected a whole number",
        ),
        (
            "[sink]\ndurability = \"disk\"",
            "sink.durability = \"disk\": expected \"memory\" or \"fsync\"",
        ),
        ("[sink]\ndurability = \"replicas:0\"", "sink.durability = \"replicas:0\": expected"),
        (
            "[offset]\nstore = \"file\"",
            "offset.store = \"file\": expected \"redis\" or \"postgres\"",
        ),
        ("[consumer]\nfrom = \"$\"", "consumer.from = \"$\": expected \"beginning\", \"now\""),
        (
            "[consumer]\nstreams = [\"\"]",
            "consumer.streams = [\"\"]: expected a text that is not empty",
        ),
        ("[http]\nlisten = \"here\"", "http.listen = \"here\": expected an address with a port"),
        ("[log]\nlevel = \"x=[\"", "log.level = \"x=[\": expected error, warn, info"),
        (
            "[log]\nformat = \"xml\"",
            "log.format = \"xml\": expected \"auto\" or \"human\" or \"json\"",
        ),
    ] {
        let problem = problem(toml);
        assert!(problem.starts_with(expected), "{toml}\n got {problem}\nnot {expected}");
    }
}

#[test]
fn unknown_keys_are_refused_and_the_nearest_is_suggested() {
    assert!(problem("[source]\nslto = \"a\"").contains("did you mean `source.slot`?"));
    assert!(problem("[sink]\nslot = \"a\"").contains("did you mean `source.slot`?"));
    assert!(problem("[weather]\nsun = 1").contains("`outflow config` lists every key"));
    let section = problem("sink = \"redis://h\"");
    assert!(
        section.contains("is a section, not a value; it has keys such as `sink.url`"),
        "{section}"
    );
    let table = problem("[source.slot]\nname = \"a\"");
    assert!(table.contains("no such key"), "{table}");
}

#[test]
fn a_file_that_is_no_toml_is_named_with_its_line() {
    let Problems(problems) = load("connector = \"a\"\n[sink\n").unwrap_err();
    assert!(problems.iter().any(|problem| problem.message.starts_with("line 2: ")), "{problems:?}");
}

#[test]
fn lists_may_be_written_with_commas_outside_the_file() {
    for value in ["order,payment", " order , payment ", "[\"order\", \"payment\"]"] {
        let config = with_flags(&[("consumer.streams", value)]).unwrap();
        assert_eq!(config.consumer.streams, ["order", "payment"], "{value}");
    }
    assert_eq!(with_flags(&[("source.columns.omit", "")]).unwrap().source.columns.omit, [""; 0]);
}

#[test]
fn a_column_that_somebody_named_is_required() {
    let config =
        load("[source.columns]\nseq = \"version\"\nheaders = \"\"\nevent_id = \"id\"").unwrap();
    let columns = config.source.columns;
    assert_eq!(columns.event_id, "id");
    assert_eq!(columns.seq, Column::Required("version".into()));
    assert_eq!(columns.headers, Column::None);
    assert_eq!(columns.created_at, Column::IfPresent("created_at".into()));
}

#[test]
fn the_slot_has_the_connector_s_name_where_that_can_be_one() {
    assert_eq!(load("connector = \"orders\"").unwrap().source.slot, "orders");
    let problem = problem("connector = \"orders-eu\"");
    assert!(problem.contains("set source.slot"), "{problem}");
    assert_eq!(load("connector = \"orders-eu\"\nsource.slot = \"o\"").unwrap().source.slot, "o");
}

#[test]
fn addresses_are_local_unless_they_say_otherwise() {
    for (given, address) in [
        ("9187", "127.0.0.1:9187"),
        (":9187", "127.0.0.1:9187"),
        ("localhost:9187", "127.0.0.1:9187"),
        ("0.0.0.0:9187", "0.0.0.0:9187"),
        ("[::1]:9187", "[::1]:9187"),
    ] {
        let config = with_flags(&[("http.listen", given)]).unwrap();
        assert_eq!(config.listen.map(|listen| listen.to_string()).as_deref(), Some(address));
    }
}

#[test]
fn redis_may_be_one_server_sentinels_or_a_cluster() {
    let redis = |url| with_flags(&[("sink.url", url)]).map(|config| config.sink.redis.to_string());
    assert_eq!(redis("rediss://h/1").unwrap(), "h:6379");
    assert_eq!(
        redis("redis+sentinel://:pw@a:26379,b:26380/main").unwrap(),
        "primary main of the sentinels a:26379, b:26380"
    );
    assert_eq!(redis("redis+cluster://a,b:7000").unwrap(), "the cluster of a:6379, b:7000");
    for bad in ["redis+sentinel://a:26379", "redis+sentinel:///m", "redis+sentinel://a/", "", "h:1"]
    {
        assert!(redis(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_libraries_get_what_was_set() {
    let toml = "[source]\nurl = \"postgres://u@h/d\"\nmessage_prefix = \"\"\n\
                [sink]\ndurability = \"replicas:2\"\npartitions = 2\nstream_prefix = \"s:\"\n\
                [consumer]\nid = \"books\"\nstreams = [\"order\"]\nfrom = \"5-1\"\nbatch = 7";
    let config = load(toml).unwrap();
    let connector = config.connector_config().unwrap();
    assert_eq!(connector.source.message_prefix, None);
    assert_eq!(connector.sink.durability, Durability::Replicas(2));
    let consumer = config.consumer_config().unwrap();
    assert_eq!(consumer.streams, ["s:{order:0}", "s:{order:1}"]);
    assert_eq!(consumer.batch, 7);
    assert_eq!(consumer.redis.to_string(), "127.0.0.1:6379");
    assert_eq!(consumer.from, Some(Start::After("5-1".parse().unwrap())));
}

#[test]
fn a_consumer_may_read_elsewhere_than_the_connector_writes() {
    let flags = [
        ("sink.url", "redis+sentinel://a:26379/m"),
        ("consumer.id", "books"),
        ("consumer.streams", "order"),
    ];
    let redis =
        |flags: &[_]| with_flags(flags).unwrap().consumer_config().unwrap().redis.to_string();
    assert_eq!(redis(&flags), "primary m of the sentinels a:26379");
    let own = [flags.as_slice(), &[("consumer.redis_url", "redis://h")]].concat();
    assert_eq!(redis(&own), "h:6379");
}

#[test]
fn no_password_is_shown_by_a_configuration_that_is_printed() {
    let flags = [
        ("source.url", "postgres://u:hush@h/d"),
        ("consumer.url", "postgres://u:hush@h/d"),
        ("sink.url", "redis://u:hush@h"),
        ("consumer.redis_url", "redis://u:hush@h"),
    ];
    let shown = format!("{:?}", with_flags(&flags).unwrap());
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn the_polling_relay_has_limits_too() {
    use outflow_relay::polling::WakeUp;

    let polling = load("").unwrap().polling;
    assert_eq!(polling.interval, Duration::from_millis(50));
    assert_eq!((polling.lease, polling.retention), (Duration::from_secs(30), None));
    assert_eq!(polling.wake_up, WakeUp::Interval);
    let toml = "[polling]\nrelay = \"r-1\"\nwake_up = \"notify\"\nretention = \"7days\"\n\
                [polling.columns]\npublished_at = \"sent_at\"";
    let polling = load(toml).unwrap().polling;
    assert_eq!((polling.relay.as_str(), polling.wake_up), ("r-1", WakeUp::Notify));
    assert_eq!(polling.retention, Some(Duration::from_secs(7 * 86_400)));
    assert_eq!(polling.columns.published_at, "sent_at");
    assert_eq!(polling.columns.claimed_by, "claimed_by");
    for (line, expected) in [
        ("lease = \"100ms\"", "polling.lease = \"100ms\": expected a duration from 500ms"),
        ("interval = \"0s\"", "polling.interval = \"0s\": expected a duration from 1ms"),
        ("interval = 5", "polling.interval = 5: expected"),
        ("max_interval = \"2m\"", "polling.max_interval = \"2m\": expected a duration from 1ms"),
        (
            "interval = \"2s\"",
            "polling.max_interval = \"1s\" (default): expected at least polling.interval",
        ),
        ("relay = \"\"", "polling.relay = \"\": expected 1 to 63 letters"),
        ("wake_up = \"bell\"", "polling.wake_up = \"bell\": expected \"interval\" or \"notify\""),
        (
            "retention = \"10ms\"",
            "polling.retention = \"10ms\": expected \"forever\" or a duration",
        ),
        ("columns.claimed_by = \"\"", "polling.columns.claimed_by = \"\": expected"),
        ("intervall = \"1s\"", "polling.intervall: no such key"),
    ] {
        let found = problem(&format!("[polling]\n{line}"));
        assert!(found.starts_with(expected), "{found}");
    }
}
