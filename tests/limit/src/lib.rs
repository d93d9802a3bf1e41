//! A `#[test]` whose test ends within a limit: see `Limit` in `tests/rig`.
//!
//! A test binary that says `#[macro_use(test)] extern crate relatch_limit;` at its root gets this
//! attribute for every test, in place of the one of the standard library.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// The standard `#[test]`, for a function that says first that it has begun.
///
/// # Panics
///
/// If the item has no body.
#[proc_macro_attribute]
pub fn test(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut item: Vec<_> = item.into_iter().collect();
    let Some(TokenTree::Group(body)) = item.pop() else {
        panic!("a test is a function with a body")
    };
    let name = item
        .iter()
        .skip_while(|it| it.to_string() != "fn")
        .nth(1)
        .expect("a name");
    let begin = format!(
        "let _limit = ::relatch_rig::Limit::begin(concat!(module_path!(), \"::\", stringify!({name})));"
    );
    let mut limited: TokenStream = begin.parse().expect("Rust");
    limited.extend([TokenTree::from(body)]);
    let mut all: TokenStream = "#[::core::prelude::v1::test]".parse().expect("Rust");
    all.extend(item);
    all.extend([TokenTree::from(Group::new(Delimiter::Brace, limited))]);
    all
}
