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
                Self { $($field: crate::wire::columns::column(rows, |row| row.$field.clone()),)* }
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

pub(crate) fn column<R, T>(rows: &[R], value: impl Fn(&R) -> Option<T>) -> Vec<Option<T>> {
    let values: Vec<Option<T>> = rows.iter().map(value).collect();
    if values.iter().all(Option::is_none) { Vec::new() } else { values }
}
