//! Channel data: a JSON tree whose strings are templates. Values are inserted into the tree, never into JSON text, so
//! that no value can change the structure.

use serde_json::Value;

use super::values::json_text;

/// The tree of a template's channel data.
#[derive(Debug)]
pub(super) enum Tree {
    /// JSON without templates.
    Fixed(String),
    /// A string that is rendered. The number is the index of its compiled part.
    Text(usize),
    /// A value that is inserted as JSON. The number is the index of its compiled part.
    Inserted(usize),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

/// Builds the tree. `text` compiles one string, given its path in the tree, such as `data.components[0].text`.
pub(super) fn tree<'v, E>(
    value: &'v Value,
    path: &str,
    text: &mut impl FnMut(&str, &'v str) -> Result<Tree, E>,
) -> Result<Tree, E> {
    Ok(match value {
        Value::String(template) if template.contains('{') => text(path, template)?,
        Value::Array(items) => {
            let item = |(i, item): (usize, &'v Value)| tree(item, &format!("{path}[{i}]"), text);
            Tree::List(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let field = |(name, value): (&String, &'v Value)| {
                tree(value, &format!("{path}.{name}"), text).map(|tree| (name.clone(), tree))
            };
            Tree::Map(fields.iter().map(field).collect::<Result<_, _>>()?)
        }
        fixed => Tree::Fixed(fixed.to_string()),
    })
}

impl Tree {
    /// Writes the tree as JSON. `render` renders a code by its number.
    pub(super) fn write<E>(
        &self,
        out: &mut String,
        render: &mut impl FnMut(usize) -> Result<String, E>,
    ) -> Result<(), E> {
        match self {
            Self::Fixed(json) => out.push_str(json),
            Self::Text(code) => out.push_str(&json_text(&render(*code)?)),
            Self::Inserted(code) => out.push_str(&render(*code)?),
            Self::List(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    item.write(out, render)?;
                }
                out.push(']');
            }
            Self::Map(fields) => {
                out.push('{');
                for (i, (name, value)) in fields.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    out.push_str(&json_text(name));
                    out.push(':');
                    value.write(out, render)?;
                }
                out.push('}');
            }
        }
        Ok(())
    }
}
