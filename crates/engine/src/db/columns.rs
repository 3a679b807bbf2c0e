//! Declares the columns of a row once. From the declaration come their names in a statement, their positions in the
//! result, and the arrays for PostgreSQL's `unnest`.

use postcommit::Timestamp;
use uuid::Uuid;

use super::{Cells, DbError, FromValue, postgres};

/// One column of a declared row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// The SQL expression for this column on PostgreSQL.
    pub(crate) postgres: &'static str,
    /// The SQL expression for this column on SQLite.
    pub(crate) sqlite: &'static str,
}

/// A row whose columns are declared with [`columns!`].
pub(crate) trait Columns: Sized {
    const COLUMNS: &'static [Column];

    /// Reads a row from a result. `places` are the positions of the columns in it.
    fn read(row: &mut impl Cells, places: &[usize]) -> Result<Self, DbError>;
}

/// Reads the column at the next position in `places`.
pub(crate) fn next<T: FromValue>(row: &mut impl Cells, places: &mut std::slice::Iter<'_, usize>) -> Result<T, DbError> {
    let place = places.next().ok_or_else(|| DbError::Unreadable("the result of a query lacks a column".into()))?;
    row.take(*place)
}

/// Declares the SQL of each column: `field: "text"`, or `field: "text for PostgreSQL" | "text for SQLite"`. A function
/// after `=>` converts the value.
macro_rules! columns {
    (impl $row:ident { $($field:ident: $postgres:literal $(| $sqlite:literal)? $(=> $map:expr)?),* $(,)? }) => {
        impl $crate::db::columns::Columns for $row {
            const COLUMNS: &'static [$crate::db::columns::Column] = &[$($crate::db::columns::Column {
                name: stringify!($field),
                postgres: $postgres,
                sqlite: $crate::db::columns::columns!(@last $postgres $(, $sqlite)?),
            }),*];

            fn read(row: &mut impl $crate::db::Cells, places: &[usize]) -> Result<Self, $crate::db::DbError> {
                let mut places = places.iter();
                $(let $field = $crate::db::columns::next(row, &mut places)?;)*
                Ok(Self { $($field: $crate::db::columns::columns!(@mapped $field $(, $map)?)),* })
            }
        }
    };
    ($(#[$about:meta])* struct $row:ident { $($field:ident: $type:ty = $postgres:literal $(| $sqlite:literal)?),* $(,)? }) => {
        $(#[$about])*
        struct $row { $($field: $type),* }
        $crate::db::columns::columns! { impl $row { $($field: $postgres $(| $sqlite)?),* } }
    };
    (@last $first:literal) => { $first };
    (@last $first:literal, $second:literal) => { $second };
    (@mapped $value:ident) => { $value };
    (@mapped $value:ident, $map:expr) => { ($map)($value) };
}

/// Declares a row type for statements that take many rows as parameters. On PostgreSQL the parameters are one array per
/// column.
macro_rules! arrays {
    ($(#[$about:meta])* struct $row:ident$(<$life:lifetime>)?, $arrays:ident { $($column:ident: $type:ty),* $(,)? }) => {
        $(#[$about])*
        pub(crate) struct $row$(<$life>)? { $(pub(crate) $column: $type,)* }

        #[derive(Default)]
        pub(crate) struct $arrays$(<$life>)? { $($column: Vec<$type>,)* }

        impl$(<$life>)? $arrays$(<$life>)? {
            /// The name and the SQL type of each column.
            pub(crate) const COLUMNS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($column), <$type as $crate::db::columns::SqlType>::NAME)),*];

            /// Makes room for further rows.
            pub(crate) fn reserve(&mut self, rows: usize) {
                $(self.$column.reserve(rows);)*
            }

            pub(crate) fn push(&mut self, row: $row$(<$life>)?) {
                $(self.$column.push(row.$column);)*
            }

            /// Empties the columns that hold nothing but NULL. `unnest` fills a shorter array up with NULL, so the
            /// statement reads the same rows, and PostgreSQL has no values to read.
            #[allow(dead_code, reason = "for the arrays of settle, whose rows are the most")]
            pub(crate) fn clear_nulls(&mut self) {
                $(if self.$column.iter().all($crate::db::columns::SqlType::is_null) {
                    self.$column.clear();
                })*
            }

            pub(crate) fn parameters(&self) -> Vec<&(dyn tokio_postgres::types::ToSql + Sync)> {
                vec![$(&self.$column),*]
            }
        }

        impl$(<$life>)? FromIterator<$row$(<$life>)?> for $arrays$(<$life>)? {
            fn from_iter<I: IntoIterator<Item = $row$(<$life>)?>>(rows: I) -> Self {
                let (mut arrays, rows) = (Self::default(), rows.into_iter());
                arrays.reserve(rows.size_hint().0);
                rows.for_each(|row| arrays.push(row));
                arrays
            }
        }
    };
}

pub(crate) use {arrays, columns};

/// A Rust type whose PostgreSQL type name is known.
pub(crate) trait SqlType {
    const NAME: &'static str;

    /// Whether the value is NULL in SQL.
    fn is_null(&self) -> bool {
        false
    }
}

macro_rules! sql_types {
    ($($type:ty = $name:literal),*) => {$(
        impl SqlType for $type {
            const NAME: &'static str = $name;
        }
    )*};
}
sql_types! { i32 = "int", i64 = "bigint", bool = "boolean", str = "text", String = "text", Uuid = "uuid", Timestamp = "timestamptz" }

impl SqlType for postgres::Time {
    const NAME: &'static str = "timestamptz";

    fn is_null(&self) -> bool {
        self.0.is_none()
    }
}

impl<T: SqlType> SqlType for Option<T> {
    const NAME: &'static str = T::NAME;

    fn is_null(&self) -> bool {
        self.is_none()
    }
}

impl<T: SqlType + ?Sized> SqlType for &T {
    const NAME: &'static str = T::NAME;

    fn is_null(&self) -> bool {
        (*self).is_null()
    }
}

/// Returns `unnest($1::int[], …) AS g (tenant, …)`. The parameters have the order of these columns.
pub(crate) fn unnest(columns: &[(&str, &str)]) -> String {
    unnest_from(1, columns, "g")
}

/// Returns `unnest($first::int[], …) AS alias (tenant, …)`. The parameters from `first` on have the order of these
/// columns.
pub(crate) fn unnest_from(first: usize, columns: &[(&str, &str)], alias: &str) -> String {
    let arrays: Vec<String> =
        (first..).zip(columns).map(|(place, (_, sql_type))| format!("${place}::{sql_type}[]")).collect();
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    format!("unnest({}) AS {alias} ({})", arrays.join(", "), names.join(", "))
}

/// Returns the select list of a row for PostgreSQL, with each expression named after its column.
pub(crate) fn list_postgres<C: Columns>() -> String {
    list(C::COLUMNS, |column| column.postgres)
}

/// Returns the select list of a row for SQLite, with each expression named after its column.
pub(crate) fn list_sqlite<C: Columns>() -> String {
    list(C::COLUMNS, |column| column.sqlite)
}

fn list(columns: &[Column], text: fn(&Column) -> &'static str) -> String {
    columns.iter().map(|column| format!("{} AS {}", text(column), column.name)).collect::<Vec<_>>().join(", ")
}

/// Returns the names of a row's columns, each with the prefix `before`.
pub(crate) fn names<C: Columns>(before: &str) -> String {
    C::COLUMNS.iter().map(|column| format!("{before}{}", column.name)).collect::<Vec<_>>().join(", ")
}

/// Returns a select list that takes a row's columns from `from` and adds the prefix `before` to their names.
pub(crate) fn names_as<C: Columns>(from: &str, before: &str) -> String {
    C::COLUMNS
        .iter()
        .map(|Column { name, .. }| format!("{from}{name} AS {before}{name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the positions of the columns in a result that begins with them.
pub(crate) fn in_order<C: Columns>() -> Vec<usize> {
    (0..C::COLUMNS.len()).collect()
}

/// Returns the positions of a row's columns in a PostgreSQL result. They are looked up by name, once for all rows.
pub(crate) fn places<C: Columns>(rows: &[tokio_postgres::Row], before: &str) -> Result<Vec<usize>, DbError> {
    C::COLUMNS.iter().map(|column| place(rows, &format!("{before}{}", column.name))).collect()
}

/// Returns the position of a column in a PostgreSQL result.
pub(crate) fn place(rows: &[tokio_postgres::Row], name: &str) -> Result<usize, DbError> {
    let Some(first) = rows.first() else { return Ok(0) };
    let found = first.columns().iter().position(|column| column.name() == name);
    found.ok_or_else(|| DbError::Unreadable(format!("the result of a query has no column {name}")))
}

/// Returns the positions of the named columns in a PostgreSQL result.
pub(crate) fn find<const N: usize>(rows: &[tokio_postgres::Row], names: [&str; N]) -> Result<[usize; N], DbError> {
    let mut places = [0; N];
    for (found, name) in places.iter_mut().zip(names) {
        *found = place(rows, name)?;
    }
    Ok(places)
}

/// Returns the SQLite statement that inserts one row. Its parameters have the order of these columns.
pub(crate) fn insert(table: &str, columns: &str) -> String {
    let values: Vec<String> = (1..).zip(columns.split(',')).map(|(place, _)| format!("?{place}")).collect();
    format!("INSERT INTO {table} ({columns}) VALUES ({})", values.join(", "))
}
