//! Tables in Markdown.

use std::fmt::Write;

/// A table that is filled row by row.
pub(crate) struct Table {
    text: String,
}

impl Table {
    /// The first column is words, the others are figures.
    pub(crate) fn new(columns: &[&str]) -> Table {
        Table::with_ruler(columns, "---:")
    }

    pub(crate) fn of_words(columns: &[&str]) -> Table {
        Table::with_ruler(columns, "---")
    }

    fn with_ruler(columns: &[&str], ruler: &str) -> Table {
        let mut table = Table { text: String::new() };
        table.row(columns.iter().map(ToString::to_string));
        let rulers = (0..columns.len()).map(|column| if column == 0 { "---" } else { ruler });
        table.row(rulers.map(str::to_owned));
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    pub(crate) fn text(self) -> String {
        self.text
    }
}
