//! Takes out of a connection string the keywords that `tokio_postgres` does not know.

use std::{collections::HashMap, iter::Peekable, str::Chars};

use crate::Error;

/// Keywords that are read here. `sslmode` too, for the values that `tokio_postgres` lacks.
const OWN: [&str; 5] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "passfile"];

type Own = HashMap<&'static str, String>;

pub(super) fn parse(dsn: &str) -> Result<(tokio_postgres::Config, Own), Error> {
    let mut own = Own::new();
    let rest = if dsn.starts_with("postgres://") || dsn.starts_with("postgresql://") {
        split_url(dsn, &mut own)?
    } else {
        split_keywords(dsn, &mut own)?
    };
    // the parser's own errors name the keyword and never show a value
    let config = rest.parse().map_err(|e: tokio_postgres::Error| {
        let cause = std::error::Error::source(&e).map(ToString::to_string);
        Error::Config(cause.unwrap_or_else(|| e.to_string()))
    })?;
    Ok((config, own))
}

fn take(
    own: &mut Own,
    key: &str,
    value: impl FnOnce() -> Result<String, Error>,
) -> Result<bool, Error> {
    match OWN.iter().find(|own| **own == key) {
        Some(key) => {
            own.insert(key, value()?);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// The query part of a URL, without our own keywords.
fn split_url(url: &str, own: &mut Own) -> Result<String, Error> {
    // a question mark may stand in a password: look for the query behind the credentials
    let after_credentials = url.find('@').unwrap_or(0);
    let query_at = url.get(after_credentials..).and_then(|s| s.find('?'));
    let Some((head, query)) =
        query_at.and_then(|at| url.split_at_checked(after_credentials.saturating_add(at)))
    else {
        return Ok(url.to_owned());
    };
    let mut kept = Vec::new();
    for pair in query.trim_start_matches('?').split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !take(own, key, || percent_decode(key, value))? {
            kept.push(pair);
        }
    }
    if kept.is_empty() {
        return Ok(head.to_owned());
    }
    Ok(format!("{head}?{}", kept.join("&")))
}

fn percent_decode(key: &str, value: &str) -> Result<String, Error> {
    let bad = || Error::Config(format!("{key}: its percent-encoding is not usable"));
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
        let code = digit(rest.next())? * 16 + digit(rest.next())?;
        bytes.push(u8::try_from(code).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// `keyword = value` pairs, without our own keywords.
fn split_keywords(dsn: &str, own: &mut Own) -> Result<String, Error> {
    let mut kept = String::new();
    let mut chars = dsn.chars().peekable();
    loop {
        skip_space(&mut chars);
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            key.push(c);
        }
        if key.is_empty() && chars.peek().is_none() {
            return Ok(kept);
        }
        skip_space(&mut chars);
        if key.is_empty() || chars.next() != Some('=') {
            // the key may be a part of a badly quoted password: it is not shown
            return Err(Error::Config(
                "a keyword without \"=\" (values with spaces need quotes)".into(),
            ));
        }
        skip_space(&mut chars);
        let value = value(&mut chars)
            .ok_or_else(|| Error::Config(format!("the quotes of {key} are not closed")))?;
        if !take(own, &key, || Ok(value.clone()))? {
            let quoted = value.replace('\\', "\\\\").replace('\'', "\\'");
            kept.push_str(&format!("{key}='{quoted}' "));
        }
    }
}

fn skip_space(chars: &mut Peekable<Chars<'_>>) {
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
}

/// One value, quoted or not; `None` if its quotes are not closed.
fn value(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    let quoted = chars.next_if_eq(&'\'').is_some();
    let mut value = String::new();
    loop {
        match chars.peek() {
            None => return if quoted { None } else { Some(value) },
            Some('\'') if quoted => {
                chars.next();
                return Some(value);
            }
            Some(c) if !quoted && c.is_whitespace() => return Some(value),
            Some('\\') => {
                chars.next();
                value.extend(chars.next());
            }
            Some(_) => value.extend(chars.next()),
        }
    }
}
