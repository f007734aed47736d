use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

use super::*;

/// The first value of `bytes`, and what follows it.
fn value(bytes: &[u8]) -> RedisResult<(Value, &[u8])> {
    reply(bytes).map(|(reply, rest)| (reply.into(), rest))
}

/// A reply of each kind, as Redis 7.0 sends it.
const READ: &[u8] = b"*1\r\n*2\r\n$1\r\ns\r\n*2\r\n\
    *2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n*2\r\n$3\r\n2-0\r\n*-1\r\n";

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

#[test]
fn replies_as_redis_sends_them() {
    let entry = Value::Array(vec![text("1-0"), Value::Array(vec![text("a"), text("")])]);
    let gone = Value::Array(vec![text("2-0"), Value::Nil]);
    let stream = Value::Array(vec![text("s"), Value::Array(vec![entry, gone])]);
    for (bytes, expected) in [
        (&b"+OK\r\n"[..], Value::Okay),
        (b"+QUEUED\r\n", Value::SimpleString("QUEUED".to_owned())),
        (b":-7\r\n", Value::Int(-7)),
        (b"$-1\r\n", Value::Nil),
        (b"*-1\r\n", Value::Nil),
        (b"*0\r\n", Value::Array(Vec::new())),
        (b"$4\r\n\r\n\r\n\r\n", text("\r\n\r\n")),
        (READ, Value::Array(vec![stream])),
    ] {
        assert_eq!(Scan::new().advance(bytes).unwrap(), Some(bytes.len()));
        assert_eq!(value(bytes).unwrap(), (expected, &b""[..]));
    }
}

#[test]
fn errors_keep_code_and_details() {
    let (refused, _) = value(b"-EXECABORT Transaction discarded\r\n:1\r\n").unwrap();
    let Value::ServerError(error) = refused else { unreachable!("{refused:?}") };
    assert_eq!((error.code(), error.details()), ("EXECABORT", Some("Transaction discarded")));
}

#[test]
fn what_is_no_reply_is_refused() {
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\n"[..],
        b"$x\r\n",
        b"$-2\r\n",
        b"$\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n%1\r\n",
    ] {
        let seen = String::from_utf8_lossy(bytes);
        assert_eq!(Scan::new().advance(bytes).unwrap_err().kind(), ErrorKind::Parse, "{seen}");
        assert_eq!(value(bytes).unwrap_err().kind(), ErrorKind::Parse, "{seen}");
    }
    let deep = b"*1\r\n".repeat(100);
    assert!(value(&deep).unwrap_err().to_string().contains("nested"));
}

#[test]
fn a_command_is_taken_apart() {
    let packed = redis::cmd("XADD").arg("s").arg("*").arg("a").arg("").get_packed_command();
    let twice = packed.repeat(2);
    let (arguments, rest) = command(&twice).unwrap();
    assert_eq!(arguments, [&b"XADD"[..], b"s", b"*", b"a", b""]);
    assert_eq!(rest, packed);
    assert_eq!(command(packed.get(..9).unwrap()), None);
    assert_eq!(command(b"+OK\r\n"), None);
}

fn any_reply() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof!["[ -~]{0,9}".prop_map(|text| format!("+{text}\r\n").into_bytes())];
    let int = any::<i64>().prop_map(|int| format!(":{int}\r\n").into_bytes());
    let bulk = prop::collection::vec(any::<u8>(), 0..40).prop_map(|content| {
        [format!("${}\r\n", content.len()).as_bytes(), &content, b"\r\n"].concat()
    });
    let nil = Just(b"$-1\r\n".to_vec());
    let error = "[A-Z]{1,9} [ -~]{0,9}".prop_map(|text| format!("-{text}\r\n").into_bytes());
    prop_oneof![line, int, bulk, nil, error].prop_recursive(4, 60, 8, |item| {
        prop::collection::vec(item, 0..8).prop_map(|items| {
            [format!("*{}\r\n", items.len()).into_bytes(), items.concat()].concat()
        })
    })
}

proptest! {
    /// Against the client's own parser, which was used before.
    #[test]
    fn a_reply_is_what_the_client_makes_of_it(reply in any_reply()) {
        let (parsed, rest) = value(&reply).unwrap();
        assert!(rest.is_empty());
        let expected = redis::parse_redis_value(&reply).unwrap();
        assert_eq!(parsed, expected);
        assert_eq!(Value::from(Reply::from(&expected)), expected);
    }

    #[test]
    fn the_end_is_found_however_the_bytes_come_in(reply in any_reply(), step in 1_usize..9) {
        let followed = [reply.as_slice(), b":1\r\n"].concat();
        let mut scan = Scan::new();
        let found = (0..=followed.len()).step_by(step).find_map(|there| {
            let ended = scan.advance(followed.get(..there).unwrap()).unwrap();
            ended.map(|length| (length, there))
        });
        let (length, there) =
            found.unwrap_or_else(|| (scan.advance(&followed).unwrap().unwrap(), followed.len()));
        assert_eq!(length, reply.len());
        assert!(there < length + step);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(
        prop_oneof![4 => prop::sample::select(b"*$+-:\r\n0123456789".to_vec()), 1 => any::<u8>()], 0..64,
    )) {
        let _ = Scan::new().advance(&bytes);
        let _ = reply(&bytes);
        let _ = command(&bytes);
    }
}
