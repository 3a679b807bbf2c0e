//! The value type for parameters and results of statements that are written for both databases.

use bytes::BytesMut;
use postcommit::Timestamp;
use postcommit_channel::secret::Hash;
use postcommit_channel::template::Payload;
use serde_json::value::RawValue;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use super::DbError;

/// The microseconds from 1970 to 2000. PostgreSQL counts times from 2000.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// A parameter or a result value of a statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    /// An integer. On SQLite also a boolean or a time.
    Int(i64),
    /// A floating-point number.
    Real(f64),
    /// A string. On SQLite also a UUID or JSON.
    Text(String),
    Bytes(Vec<u8>),
    Bool(bool),
    Uuid(Uuid),
    Time(Timestamp),
    /// JSON as text, so that numbers keep every digit.
    Json(String),
    /// A list of strings: an array on PostgreSQL, a JSON array on SQLite.
    Texts(Vec<String>),
}

macro_rules! from {
    ($($type:ty => |$x:ident| $make:expr),* $(,)?) => {$(
        impl From<$type> for Value {
            fn from($x: $type) -> Self { $make }
        }
    )*};
}
from! {
    i64 => |x| Self::Int(x), i32 => |x| Self::Int(x.into()), i16 => |x| Self::Int(x.into()), u16 => |x| Self::Int(x.into()), u32 => |x| Self::Int(x.into()),
    bool => |x| Self::Bool(x), String => |x| Self::Text(x), &str => |x| Self::Text(x.to_owned()), Uuid => |x| Self::Uuid(x),
    Timestamp => |x| Self::Time(x), Hash => |x| Self::Bytes(x.0.to_vec()), Vec<u8> => |x| Self::Bytes(x), serde_json::Value => |x| Self::Json(x.to_string()),
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Encodes the value as the type that PostgreSQL expects for the parameter.
impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match (self, ty) {
            (Self::Null, _) => Ok(IsNull::Yes),
            (Self::Int(x), &Type::INT2) => i16::try_from(*x)?.to_sql(ty, out),
            (Self::Int(x), &Type::INT4) => i32::try_from(*x)?.to_sql(ty, out),
            (Self::Int(x), _) => x.to_sql(ty, out),
            (Self::Real(x), _) => x.to_sql(ty, out),
            (Self::Bool(x), _) => x.to_sql(ty, out),
            (Self::Uuid(x), _) => x.to_sql(ty, out),
            (Self::Time(x), _) => (x.as_micros() - EPOCH_2000).to_sql(&Type::INT8, out),
            (Self::Bytes(x), _) => x.to_sql(ty, out),
            (Self::Texts(x), _) => x.to_sql(ty, out),
            (Self::Json(x), &Type::JSONB) => {
                // The wire format of jsonb is a version byte and the text.
                out.extend_from_slice(&[1]);
                out.extend_from_slice(x.as_bytes());
                Ok(IsNull::No)
            }
            (Self::Text(x) | Self::Json(x), _) => x.as_str().to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// One result row, read by position.
#[derive(Debug, Clone)]
pub struct Row(pub Vec<Value>);

impl Row {
    pub(crate) fn from_postgres(row: &tokio_postgres::Row) -> Result<Self, DbError> {
        (0..row.len()).map(|place| from_postgres(row, place)).collect::<Result<_, _>>().map(Self)
    }

    /// Reads column `place`. If it holds bytes where text is expected, the bytes are shown as text, as
    /// [`FromValue::shown`] describes.
    pub fn get<T: FromValue>(&self, place: usize) -> Result<T, DbError> {
        let value = self.0.get(place).cloned().unwrap_or(Value::Null);
        T::shown(&value).map_or_else(|| read(value, place), Ok)
    }
}

/// A row from which values are moved out one by one. The hot path reads PostgreSQL rows directly in this way and builds
/// no [`Row`].
pub trait Cells {
    /// Moves the value of column `place` out of the row.
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError>;
}

impl Cells for Row {
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError> {
        read(self.0.get_mut(place).map_or(Value::Null, |cell| std::mem::replace(cell, Value::Null)), place)
    }
}

/// Reads values for display, with [`FromValue::shown`].
impl Cells for &Row {
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError> {
        self.get(place)
    }
}

impl Cells for tokio_postgres::Row {
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError> {
        direct(self, place)
    }
}

impl Cells for &tokio_postgres::Row {
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError> {
        direct(self, place)
    }
}

fn direct<T: FromValue>(row: &tokio_postgres::Row, place: usize) -> Result<T, DbError> {
    match row.try_get::<_, Direct<T>>(place) {
        Ok(Direct(value)) => value.ok_or_else(|| unreadable::<T>(place)),
        Err(problem) => Err(DbError::Unreadable(problem.to_string())),
    }
}

pub(super) fn read<T: FromValue>(value: Value, place: usize) -> Result<T, DbError> {
    T::from_value(value).ok_or_else(|| unreadable::<T>(place))
}

fn unreadable<T>(place: usize) -> DbError {
    DbError::Unreadable(format!(
        "the value in column {place} of a query's result, counted from 0, cannot be read as {}",
        std::any::type_name::<T>()
    ))
}

/// A Rust type to which a result value can be converted.
pub trait FromValue: Sized {
    /// Converts the value to this type. Returns `None` if it has another type.
    fn from_value(value: Value) -> Option<Self>;

    /// Decodes PostgreSQL's binary format of a value that is not NULL. A type of which a claim reads many values decodes
    /// its usual column type itself, because a [`Value`] in between would take as long again.
    fn from_wire(ty: &Type, raw: &[u8]) -> Result<Option<Self>, WireError> {
        Ok(Self::from_value(Cell::from_sql(ty, raw)?.0))
    }

    /// Returns the value that lists show if a SQLite file has bytes where text is expected. The hot path reads with
    /// [`Cells::take`] and never sends this value.
    fn shown(value: &Value) -> Option<Self> {
        let _ = value;
        None
    }
}

/// Why PostgreSQL's binary format of a value cannot be decoded.
type WireError = Box<dyn std::error::Error + Sync + Send>;

/// How many bytes are shown at most.
const SHOWN_BYTES: usize = 32;

/// Shows bytes as text, for example `unreadable: x'61636d65'`. The part after the colon is the SQL literal for these
/// bytes.
fn bytes_as_text(value: &Value) -> Option<String> {
    let Value::Bytes(bytes) = value else { return None };
    let hex: String = bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect();
    Some(format!("unreadable: x'{hex}'{}", if bytes.len() > SHOWN_BYTES { "…" } else { "" }))
}

impl FromValue for Value {
    fn from_value(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Option<Self> {
        if matches!(value, Value::Null) { Some(None) } else { T::from_value(value).map(Some) }
    }

    fn from_wire(ty: &Type, raw: &[u8]) -> Result<Option<Self>, WireError> {
        Ok(T::from_wire(ty, raw)?.map(Some))
    }

    fn shown(value: &Value) -> Option<Self> {
        T::shown(value).map(Some)
    }
}

macro_rules! reads {
    ($($type:ty => { $($pattern:pat => $result:expr),* $(,)? } $(= $column:ident |$raw:ident| $decode:expr;)? $(@ { $shown:expr })?)*) => {$(
        impl FromValue for $type {
            fn from_value(value: Value) -> Option<Self> {
                match value { $($pattern => $result,)* _ => None }
            }

            $(fn from_wire(ty: &Type, $raw: &[u8]) -> Result<Option<Self>, WireError> {
                if *ty == Type::$column { $decode.map(Some) } else { Ok(Self::from_value(Cell::from_sql(ty, $raw)?.0)) }
            })?

            $(fn shown(value: &Value) -> Option<Self> {
                bytes_as_text(value).map($shown)
            })?
        }
    )*};
}
reads! {
    i64 => { Value::Int(x) => Some(x) } = INT8 |raw| Ok(Self::from_be_bytes(raw.try_into()?));
    i32 => { Value::Int(x) => i32::try_from(x).ok() } = INT4 |raw| Ok(Self::from_be_bytes(raw.try_into()?));
    i16 => { Value::Int(x) => i16::try_from(x).ok() } = INT2 |raw| Ok(Self::from_be_bytes(raw.try_into()?));
    u16 => { Value::Int(x) => u16::try_from(x).ok() }
    u32 => { Value::Int(x) => u32::try_from(x).ok() }
    f64 => { Value::Real(x) => Some(x), Value::Int(x) => Some(x as f64) }
    bool => { Value::Bool(x) => Some(x), Value::Int(x) => Some(x != 0) }
    String => { Value::Text(x) | Value::Json(x) => Some(x) } = TEXT |raw| Ok(std::str::from_utf8(raw)?.to_owned()); @ { |text| text }
    Vec<u8> => { Value::Bytes(x) => Some(x) }
    Hash => { Value::Bytes(x) => x.try_into().ok().map(Hash) }
    Uuid => { Value::Uuid(x) => Some(x), Value::Text(x) => x.parse().ok() } = UUID |raw| Ok(Self::from_slice(raw)?);
    Timestamp => { Value::Time(x) => Some(x), Value::Int(x) => Some(Self::from_micros(x)), Value::Text(x) => x.parse().ok() } = TIMESTAMPTZ |raw| time(raw);
    // JSON that serde_json cannot parse is shown as text. Examples are too deep nesting and a number beyond any float.
    serde_json::Value => { Value::Json(x) | Value::Text(x) => Some(serde_json::from_str(&x).unwrap_or_else(|_| x.into())) } @ { serde_json::Value::String }
    Box<RawValue> => { Value::Json(x) | Value::Text(x) => raw(x) } @ { |text| serde_json::value::to_raw_value(&text).unwrap_or_default() }
    Payload => { Value::Json(x) | Value::Text(x) => Some(Payload::from(x)) } @ { |text| Payload::from(serde_json::value::to_raw_value(&text).unwrap_or_default()) }
    Vec<String> => { Value::Texts(x) => Some(x), Value::Text(x) => Some(texts(&x)) } @ { |text| vec![text] }
}

/// Returns JSON as its stored text. Text that is not JSON becomes a JSON string.
fn raw(json: String) -> Option<Box<RawValue>> {
    RawValue::from_string(json.clone()).or_else(|_| serde_json::value::to_raw_value(&json)).ok()
}

/// Reads a JSON array of strings. Items of another type, which an application may have written, are shown as JSON.
fn texts(json: &str) -> Vec<String> {
    let items: Vec<serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
    items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect()
}

fn from_postgres(row: &tokio_postgres::Row, place: usize) -> Result<Value, DbError> {
    match row.try_get::<_, Option<Cell>>(place) {
        Ok(cell) => Ok(cell.map_or(Value::Null, |cell| cell.0)),
        Err(problem) => Err(DbError::Unreadable(problem.to_string())),
    }
}

/// Decodes a time, which PostgreSQL counts in microseconds from 2000.
fn time(raw: &[u8]) -> Result<Timestamp, WireError> {
    let micros = i64::from_be_bytes(raw.try_into()?);
    Ok(Timestamp::from_micros(micros.saturating_add(EPOCH_2000)))
}

/// A result value of a known Rust type. It is `None` if the column holds a value of another type. It accepts every type
/// of column, as [`Cell`] does.
struct Direct<T>(Option<T>);

impl<'a, T: FromValue> FromSql<'a> for Direct<T> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, WireError> {
        T::from_wire(ty, raw).map(Self)
    }

    fn from_sql_null(_: &Type) -> Result<Self, WireError> {
        Ok(Self(T::from_value(Value::Null)))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A result value, decoded by the type of its column. It accepts every type, because the check for each Rust type takes
/// longer than the decoding.
struct Cell(Value);

impl<'a> FromSql<'a> for Cell {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, WireError> {
        let value = match *ty {
            Type::INT2 => Value::from(i16::from_be_bytes(raw.try_into()?)),
            Type::INT4 => Value::from(i32::from_be_bytes(raw.try_into()?)),
            Type::INT8 => Value::from(i64::from_be_bytes(raw.try_into()?)),
            Type::FLOAT8 => Value::Real(f64::from_be_bytes(raw.try_into()?)),
            Type::TIMESTAMPTZ => Value::Time(time(raw)?),
            Type::BOOL => Value::from(bool::from_sql(ty, raw)?),
            Type::UUID => Value::from(Uuid::from_slice(raw)?),
            Type::BYTEA => Value::from(raw.to_vec()),
            Type::TEXT => Value::from(std::str::from_utf8(raw)?),
            // The wire format of jsonb is a version byte and the text.
            Type::JSONB => {
                let text = raw.strip_prefix(&[1]).ok_or("a jsonb value has an unknown version")?;
                Value::Json(std::str::from_utf8(text)?.to_owned())
            }
            Type::JSON => Value::Json(std::str::from_utf8(raw)?.to_owned()),
            // NULLs are left out. An array of any type may contain them.
            Type::TEXT_ARRAY => Value::Texts(Vec::<Option<String>>::from_sql(ty, raw)?.into_iter().flatten().collect()),
            _ if <&str as FromSql>::accepts(ty) => Value::from(<&str>::from_sql(ty, raw)?),
            _ => return Err(format!("a column has the unexpected type {ty}").into()),
        };
        Ok(Self(value))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire<T: FromValue>(ty: Type, raw: &[u8]) -> Option<T> {
        Direct::<T>::from_sql(&ty, raw).ok().and_then(|Direct(value)| value)
    }

    #[test]
    fn a_value_of_the_wire_is_read_as_the_rust_type_whatever_the_width_of_its_column() {
        assert_eq!(wire::<i32>(Type::INT4, &7_i32.to_be_bytes()), Some(7));
        assert_eq!(wire::<i32>(Type::INT2, &7_i16.to_be_bytes()), Some(7));
        assert_eq!(wire::<i32>(Type::INT8, &7_i64.to_be_bytes()), Some(7));
        assert_eq!(wire::<i32>(Type::INT8, &(1_i64 << 40).to_be_bytes()), None, "too large");
        assert_eq!(wire::<u32>(Type::INT4, &(-1_i32).to_be_bytes()), None, "negative");
        assert_eq!(wire::<i64>(Type::INT4, &7_i32.to_be_bytes()), Some(7));
        assert_eq!(wire::<String>(Type::TEXT, "Zoë".as_bytes()), Some("Zoë".to_owned()));
        assert_eq!(wire::<String>(Type::TEXT, &[0xff]), None, "not UTF-8");
        assert_eq!(wire::<String>(Type::JSONB, b"\x01{}"), Some("{}".to_owned()));
        assert_eq!(wire::<Uuid>(Type::UUID, &[7; 16]), Some(Uuid::from_bytes([7; 16])));
        assert_eq!(wire::<Uuid>(Type::UUID, &[7; 15]), None, "too short");
        assert_eq!(
            wire::<Timestamp>(Type::TIMESTAMPTZ, &0_i64.to_be_bytes()),
            Some(Timestamp::from_micros(EPOCH_2000))
        );
        assert_eq!(wire::<i32>(Type::TEXT, b"7"), None, "another type");
        assert_eq!(wire::<Option<i32>>(Type::INT4, &7_i32.to_be_bytes()), Some(Some(7)));
    }

    #[test]
    fn null_is_read_by_an_option_alone() {
        assert_eq!(Direct::<Option<i32>>::from_sql_null(&Type::INT4).unwrap().0, Some(None));
        assert_eq!(Direct::<i32>::from_sql_null(&Type::INT4).unwrap().0, None);
        assert_eq!(Direct::<Value>::from_sql_null(&Type::INT4).unwrap().0, Some(Value::Null));
    }
}
