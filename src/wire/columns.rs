//! One declaration, two types: a row of optional readings and the columnar form in which rows travel.

/// Declares `struct Row` (every field an `Option`) and `struct Columns` (every field a `Vec<Option<T>>`).
///
/// A column in which nothing is known is left out of the JSON, and a column that is missing, or shorter than the
/// others, reads as `None`: the sender decides how many rows there are by its longest column.
/// Measured for 8 GPUs and 40 processes, columns take 3.1 kB where objects take 9.0 kB.
macro_rules! columns {
    (
        $(#[$row_doc:meta])* row $Row:ident;
        $(#[$columns_doc:meta])* columns $Columns:ident;
        $($(#[$doc:meta])* $field:ident: $type:ty,)*
    ) => {
        $(#[$row_doc])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $Row { $($(#[$doc])* pub $field: Option<$type>,)* }

        $(#[$columns_doc])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $Columns {
            $($(#[$doc])* #[serde(skip_serializing_if = "Vec::is_empty")] pub $field: Vec<Option<$type>>,)*
        }

        impl $Columns {
            /// Turns rows into columns; a column in which every value is `None` stays empty.
            pub fn from_rows(rows: &[$Row]) -> Self {
                let mut columns = Self::default();
                for row in rows {
                    $(crate::wire::columns::push(&mut columns.$field, row.$field.clone(), rows.len());)*
                }
                $(crate::wire::columns::empty_if_unknown(&mut columns.$field);)*
                columns
            }

            /// The number of rows: the length of the longest column.
            pub fn len(&self) -> usize {
                [$(self.$field.len()),*].into_iter().max().unwrap_or(0)
            }

            /// Whether nothing at all is known.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The row at `index`. Past the end, or where a column is missing, readings are `None`.
            pub fn row(&self, index: usize) -> $Row {
                $Row { $($field: self.$field.get(index).cloned().flatten(),)* }
            }

            /// Keeps the first `limit` rows.
            pub fn truncate(&mut self, limit: usize) {
                $(self.$field.truncate(limit);)*
            }
        }
    };
}

pub(super) use columns;

/// Adds one value to a column that will have `rows`. Generic over the value alone, so that the dozens of columns share
/// a few copies of it: the probe travels to every host.
#[inline(never)]
pub(super) fn push<T>(column: &mut Vec<Option<T>>, value: Option<T>, rows: usize) {
    if column.capacity() == 0 {
        column.reserve_exact(rows);
    }
    column.push(value);
}

/// A column in which nothing is known becomes empty.
#[inline(never)]
pub(super) fn empty_if_unknown<T>(column: &mut Vec<Option<T>>) {
    if column.iter().all(Option::is_none) {
        *column = Vec::new();
    }
}
