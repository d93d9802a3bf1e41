//! The standard output.

use std::io::{self, ErrorKind, Write};
use std::process;

use crate::exit::{Failure, code};

/// Writes an answer. If nobody reads any more (`relatch ls | head`), that is no failure, and the
/// end.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(code::OK.into()),
        Err(error) => Err(Failure::new(
            code::SOFTWARE,
            format!("the standard output: {error}"),
        )),
    }
}
