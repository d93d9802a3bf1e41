//! The map of the code in `docs/architecture.md`: the rooms in their order, and for each file the
//! first sentence of its documentation.

use std::fmt::Write;

use crate::tidy::graph::{Graph, Module};
use crate::tidy::rooms::{may_use, opening, rooms};

pub(super) fn written() -> String {
    let graph = Graph::read();
    let mut map = String::new();
    for child in children(&graph, &Module::new()) {
        write_room(&graph, &child, &mut map);
    }
    map
}

/// A room, and after it the rooms in it.
fn write_room(graph: &Graph, room: &Module, map: &mut String) {
    let title = room.join("/");
    let uses: Vec<_> = may_use(room)
        .into_iter()
        .map(|it| format!("`{it}`"))
        .collect();
    let uses = match uses.split_last() {
        None => "Uses no other room.".to_owned(),
        Some((last, [])) => format!("Uses {last}."),
        Some((last, others)) => format!("Uses {} and {last}.", others.join(", ")),
    };
    let first = first_sentence(room);
    write!(map, "\n### `{title}/`\n\n{first}\n{uses}\n").expect("a text");
    let rooms = rooms(graph);
    let (inner, files): (Vec<_>, Vec<_>) = children(graph, room)
        .into_iter()
        .partition(|child| rooms.contains(child));
    if !files.is_empty() {
        map.push_str("\n| file | what is in it |\n|---|---|\n");
    }
    for file in files {
        write_file(graph, room.len(), &file, map);
    }
    for inner in inner {
        write_room(graph, &inner, map);
    }
}

/// A file, and after it those that it declares.
fn write_file(graph: &Graph, depth: usize, file: &Module, map: &mut String) {
    let name = file[depth..].join("/");
    writeln!(map, "| `{name}` | {} |", first_sentence(file)).expect("a text");
    for child in children(graph, file) {
        write_file(graph, depth, &child, map);
    }
}

/// The files that a file declares, in its order.
fn children(graph: &Graph, module: &Module) -> Vec<Module> {
    let declared = graph.files[module].declares.iter();
    let paths = declared.map(|name| [&module[..], std::slice::from_ref(name)].concat());
    paths
        .filter(|path| graph.files.contains_key(path))
        .collect()
}

/// The first sentence of a file's documentation. A link in it becomes its text.
fn first_sentence(module: &Module) -> String {
    let lines = opening(module);
    let paragraph: Vec<_> = lines
        .iter()
        .take_while(|line| !line.is_empty())
        .map(String::as_str)
        .collect();
    let paragraph = paragraph.join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |at| at + 1);
    let sentence = &paragraph[..end];
    let mut parts = sentence.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').expect("the end of a link").1);
    }
    plain.replace("[`", "`").replace("`]", "`")
}
