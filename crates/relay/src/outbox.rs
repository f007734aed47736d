//! The column mapping: which column of an outbox row is which part of an event.
//!
//! A [`RowMap`] is made once per shape of the table, when the server announces it (PostgreSQL
//! documentation, "Logical Replication Message Formats", Relation), so that a row costs one pass
//! over its columns and no look-up by name.

use outflow_event::EventRef;
use outflow_event::entry::field;
use outflow_pgoutput::TupleValue;

use crate::config::{Column, ColumnNames};

/// Where the value of a column goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    EventId,
    AggregateType,
    AggregateId,
    EventType,
    Payload,
    Seq,
    Headers,
    CreatedAt,
    /// Becomes a field of the entry under the column's name.
    Extra,
    Omit,
}

/// The mapping of one shape of the outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowMap {
    columns: Vec<(Role, Vec<u8>)>,
    max_payload: usize,
}

/// The table lacks columns that the mapping needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the outbox has no column {}: it has {}; name the right ones under [source.columns], or bring \
     the columns back",
    quoted(.missing),
    quoted(.present)
)]
pub struct MissingColumns {
    /// What the mapping looks for.
    pub missing: Vec<String>,
    /// What the table (or the publication's column list) has.
    pub present: Vec<String>,
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Why a row cannot become an entry. Such rows are set aside as dead letters of the connector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// A part that every event has is NULL, or an id that must name something is empty.
    #[error("`{0}` is NULL or empty")]
    Absent(&'static str),
    /// The payload exceeds `source.max_payload`.
    #[error("the payload has {bytes} bytes, source.max_payload is {limit}")]
    PayloadTooLarge {
        /// Size of the payload.
        bytes: usize,
        /// The configured limit.
        limit: usize,
    },
    /// The message's content is not an event.
    #[error("the message is not an event: {0}")]
    NotAnEvent(String),
}

impl RowMap {
    /// Maps a table with these `columns`, in the order in which rows deliver their values.
    ///
    /// # Errors
    /// [`MissingColumns`] when a required column, or one that the user named, is not there. Hold
    /// the position: rows of such a table would be published hollow.
    pub fn new<'a>(
        names: &ColumnNames,
        columns: impl IntoIterator<Item = &'a str>,
        max_payload: usize,
    ) -> Result<Self, MissingColumns> {
        let present: Vec<&str> = columns.into_iter().collect();
        let missing: Vec<String> = names
            .required()
            .filter(|name| !present.contains(name))
            .map(ToOwned::to_owned)
            .collect();
        if !missing.is_empty() {
            let present = present.into_iter().map(ToOwned::to_owned).collect();
            return Err(MissingColumns { missing, present });
        }
        let columns =
            present.into_iter().map(|name| (names.role(name), name.as_bytes().to_vec())).collect();
        Ok(Self { columns, max_payload })
    }

    /// Number of columns that a row delivers.
    pub(crate) fn width(&self) -> usize {
        self.columns.len()
    }

    /// Reads one row. Further columns are pushed to `extra`, which the event borrows.
    ///
    /// # Errors
    /// [`RowFault`]: set the row aside and go on.
    pub fn read<'a>(
        &'a self,
        values: impl IntoIterator<Item = TupleValue<'a>>,
        extra: &'a mut Vec<(&'a [u8], &'a [u8])>,
    ) -> Result<EventRef<'a>, RowFault> {
        let mut parts = Parts::default();
        for ((role, name), value) in self.columns.iter().zip(values) {
            let TupleValue::Text(text) = value else { continue };
            match role {
                Role::EventId => parts.event_id = Some(text),
                Role::AggregateType => parts.aggregate_type = Some(text),
                Role::AggregateId => parts.aggregate_id = Some(text),
                Role::EventType => parts.event_type = Some(text),
                Role::Payload => parts.payload = Some(text),
                Role::Seq => parts.seq = Some(text),
                Role::Headers => parts.headers = Some(text),
                Role::CreatedAt => parts.created_at = Some(text),
                Role::Extra => extra.push((name, text)),
                Role::Omit => {}
            }
        }
        parts.into_event(extra, self.max_payload)
    }

    /// Names and values of a row's columns, NULL left out: the record of a row that has a fault.
    pub fn named<'a>(
        &'a self,
        values: impl IntoIterator<Item = TupleValue<'a>>,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.columns.iter().zip(values).filter_map(|((_, name), value)| match value {
            TupleValue::Text(text) => Some((name.as_slice(), text)),
            _ => None,
        })
    }

    /// The event id of a row, if it has one.
    #[must_use]
    pub fn event_id<'a>(
        &self,
        values: impl IntoIterator<Item = TupleValue<'a>>,
    ) -> Option<&'a [u8]> {
        self.columns.iter().zip(values).find_map(|((role, _), value)| match (role, value) {
            (Role::EventId, TupleValue::Text(text)) => Some(text),
            _ => None,
        })
    }
}

/// The parts of an event before they are known to be complete.
#[derive(Debug, Default)]
pub struct Parts<'a> {
    /// Required, not empty.
    pub event_id: Option<&'a [u8]>,
    /// Required, not empty.
    pub aggregate_type: Option<&'a [u8]>,
    /// Required.
    pub aggregate_id: Option<&'a [u8]>,
    /// Required.
    pub event_type: Option<&'a [u8]>,
    /// Optional.
    pub payload: Option<&'a [u8]>,
    /// Optional.
    pub seq: Option<&'a [u8]>,
    /// Optional.
    pub headers: Option<&'a [u8]>,
    /// Optional.
    pub created_at: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    /// The event, if nothing is missing.
    ///
    /// # Errors
    /// [`RowFault`] names the first part that is missing or too large.
    pub fn into_event(
        self,
        extra: &'a [(&'a [u8], &'a [u8])],
        max_payload: usize,
    ) -> Result<EventRef<'a>, RowFault> {
        let present = |part: Option<&'a [u8]>, name| part.ok_or(RowFault::Absent(name));
        let named = |part: Option<&'a [u8]>, name| match part {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(RowFault::Absent(name)),
        };
        if let Some(payload) = self.payload
            && payload.len() > max_payload
        {
            return Err(RowFault::PayloadTooLarge { bytes: payload.len(), limit: max_payload });
        }
        Ok(EventRef {
            event_id: named(self.event_id, field::EVENT_ID)?,
            aggregate_type: named(self.aggregate_type, field::AGGREGATE_TYPE)?,
            aggregate_id: present(self.aggregate_id, field::AGGREGATE_ID)?,
            event_type: present(self.event_type, field::EVENT_TYPE)?,
            seq: self.seq,
            payload: self.payload,
            headers: self.headers,
            created_at: self.created_at,
            extra,
        })
    }
}

impl ColumnNames {
    /// Columns that must be there.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let always = [
            &self.event_id,
            &self.aggregate_type,
            &self.aggregate_id,
            &self.event_type,
            &self.payload,
        ];
        let chosen = [&self.seq, &self.headers, &self.created_at];
        always.into_iter().map(String::as_str).chain(chosen.into_iter().filter_map(|column| {
            match column {
                Column::Required(name) => Some(name.as_str()),
                Column::None | Column::IfPresent(_) => None,
            }
        }))
    }

    fn role(&self, name: &str) -> Role {
        let parts = [
            (&self.event_id, Role::EventId),
            (&self.aggregate_type, Role::AggregateType),
            (&self.aggregate_id, Role::AggregateId),
            (&self.event_type, Role::EventType),
            (&self.payload, Role::Payload),
        ];
        let optional = [
            (&self.seq, Role::Seq),
            (&self.headers, Role::Headers),
            (&self.created_at, Role::CreatedAt),
        ];
        if let Some((_, role)) = parts.into_iter().find(|(column, _)| *column == name) {
            return role;
        }
        if let Some((_, role)) = optional.into_iter().find(|(column, _)| column.is(name)) {
            return role;
        }
        // a column that shares its name with a field of the entry would make it ambiguous
        if self.omit.iter().any(|omitted| omitted == name) || field::RESERVED.contains(&name) {
            return Role::Omit;
        }
        Role::Extra
    }
}

impl Column {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::IfPresent(own) | Self::Required(own) => own == name,
        }
    }
}

#[cfg(test)]
mod tests;
