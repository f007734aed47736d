//! Replies that are looked at where they are, instead of being copied out string by string.

use bytes::Bytes;
use redis::{RedisError, RedisResult, ServerError, Value};

use crate::resp;

/// A reply, or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply<'a> {
    /// Nothing: of a string or of an array.
    Nil,
    /// A string.
    Bulk(&'a [u8]),
    /// A status, as `OK`.
    Status(&'a [u8]),
    /// A number.
    Int(i64),
    /// An error.
    Error(Box<ServerError>),
    /// Several of them.
    Array(Vec<Self>),
    /// What RESP2 does not have.
    Other,
}

impl<'a> Reply<'a> {
    /// The bytes of a string or a status.
    #[must_use]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Bulk(bytes) | Self::Status(bytes) => Some(bytes),
            Self::Nil | Self::Int(_) | Self::Error(_) | Self::Array(_) | Self::Other => None,
        }
    }

    /// The items of an array.
    #[must_use]
    pub fn items(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The error, where it is one.
    ///
    /// # Errors
    /// The server's.
    pub fn extract_error(self) -> RedisResult<Self> {
        match self {
            Self::Error(error) => Err(RedisError::from(*error)),
            other => Ok(other),
        }
    }
}

impl<'a> From<&'a Value> for Reply<'a> {
    /// A map becomes an array of pairs: what RESP2 has for it where its keys are streams.
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::BulkString(bytes) => Self::Bulk(bytes),
            Value::SimpleString(text) => Self::Status(text.as_bytes()),
            Value::Okay => Self::Status(b"OK"),
            Value::Int(int) => Self::Int(*int),
            Value::ServerError(error) => Self::Error(Box::new(error.clone())),
            Value::Array(items) => Self::Array(items.iter().map(Self::from).collect()),
            Value::Map(pairs) => {
                let pair = |(key, value)| Self::Array(vec![Self::from(key), Self::from(value)]);
                Self::Array(pairs.iter().map(|(key, value)| pair((key, value))).collect())
            }
            _ => Self::Other,
        }
    }
}

impl From<Reply<'_>> for Value {
    fn from(reply: Reply<'_>) -> Self {
        match reply {
            Reply::Nil | Reply::Other => Self::Nil,
            Reply::Bulk(bytes) => Self::BulkString(bytes.to_vec()),
            Reply::Status(b"OK") => Self::Okay,
            Reply::Status(line) => Self::SimpleString(String::from_utf8_lossy(line).into_owned()),
            Reply::Int(int) => Self::Int(int),
            Reply::Error(error) => Self::ServerError(*error),
            Reply::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
        }
    }
}

/// The replies to a pipeline.
#[derive(Debug)]
pub struct Replies(Held);

#[derive(Debug)]
enum Held {
    /// As one server sent them.
    Sent(Vec<Bytes>),
    /// As the cluster's client gives them.
    Values(Vec<Value>),
}

impl Replies {
    pub(crate) fn sent(replies: Vec<Bytes>) -> Self {
        Self(Held::Sent(replies))
    }

    pub(crate) fn values(replies: Vec<Value>) -> Self {
        Self(Held::Values(replies))
    }

    /// Each of them, in order; an error is a reply, too.
    ///
    /// # Errors
    /// When the server sent something that is no reply.
    pub fn read(&self) -> RedisResult<Vec<Reply<'_>>> {
        match &self.0 {
            Held::Sent(replies) => replies.iter().map(|reply| Ok(resp::reply(reply)?.0)).collect(),
            Held::Values(values) => Ok(values.iter().map(Reply::from).collect()),
        }
    }
}
