//! How a previewed message looks: the blocks of a chat message, and its data as text.

use serde::Serialize;
use serde_json::Value;

/// The maximum number of blocks that are drawn. Slack allows 50.
const BLOCKS: usize = 50;

/// A block of a chat message, drawn simply.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// The kind of the block: `title`, `text`, `note`, `button`, `image` or `line`.
    pub kind: &'static str,
    pub text: String,
}

impl Block {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// The blocks of Slack, or of an adaptive card of Teams. Blocks of other kinds are only shown as data.
pub fn blocks(data: Option<&Value>) -> Vec<Block> {
    let Some(data) = data else { return vec![] };
    let slack = list(data, "blocks").iter().flat_map(of_slack);
    let card = data.get("card");
    let body = card.map(|card| list(card, "body")).unwrap_or_default().iter().flat_map(of_card);
    let actions = card.map(|card| list(card, "actions")).unwrap_or_default().iter().map(button_of_card);
    slack.chain(body).chain(actions).take(BLOCKS).collect()
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The text of one of Slack's text objects.
fn words<'a>(of: &'a Value, name: &str) -> &'a str {
    of.get(name).map(|inner| inner.as_str().unwrap_or_else(|| text(inner, "text"))).unwrap_or_default()
}

fn of_slack(block: &Value) -> Vec<Block> {
    let kind = text(block, "type");
    match kind {
        "header" => vec![Block::new("title", words(block, "text"))],
        "section" => {
            let own = Some(words(block, "text")).filter(|text| !text.is_empty()).map(|text| Block::new("text", text));
            let fields = list(block, "fields").iter().map(|field| Block::new("text", text(field, "text")));
            let button = block.get("accessory").filter(|inner| text(inner, "type") == "button");
            own.into_iter()
                .chain(fields)
                .chain(button.map(|button| Block::new("button", words(button, "text"))))
                .collect()
        }
        "context" => list(block, "elements").iter().map(|inner| Block::new("note", words(inner, "text"))).collect(),
        "actions" => list(block, "elements").iter().map(|inner| Block::new("button", words(inner, "text"))).collect(),
        "image" => vec![Block::new("image", text(block, "alt_text"))],
        "divider" => vec![Block::new("line", "")],
        _ => vec![Block::new("note", kind)],
    }
}

fn of_card(block: &Value) -> Vec<Block> {
    let is_title = text(block, "weight").eq_ignore_ascii_case("bolder");
    match text(block, "type") {
        "TextBlock" => vec![Block::new(if is_title { "title" } else { "text" }, text(block, "text"))],
        "Image" => vec![Block::new("image", text(block, "altText"))],
        "FactSet" => {
            let fact = |fact: &Value| Block::new("text", format!("{}: {}", text(fact, "title"), text(fact, "value")));
            list(block, "facts").iter().map(fact).collect()
        }
        "ActionSet" => list(block, "actions").iter().map(button_of_card).collect(),
        _ => list(block, "items").iter().flat_map(of_card).collect(),
    }
}

fn button_of_card(action: &Value) -> Block {
    Block::new("button", text(action, "title"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_of_slack_and_of_a_card_are_drawn() {
        let slack = json!({"blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": "Pump 7"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": "*hot*"}, "fields": [{"type": "mrkdwn", "text": "a"}]},
            {"type": "actions", "elements": [{"type": "button", "text": {"type": "plain_text", "text": "Open"}}]},
            {"type": "divider"}, {"type": "rich_text"}, 7,
        ]});
        let said: Vec<String> =
            blocks(Some(&slack)).into_iter().map(|one| format!("{} {}", one.kind, one.text)).collect();
        assert_eq!(said, ["title Pump 7", "text *hot*", "text a", "button Open", "line ", "note rich_text", "note "]);
        let card = json!({"card": {"body": [{"type": "TextBlock", "weight": "Bolder", "text": "Pump 7"}, {"type": "Container", "items": [{"type": "TextBlock", "text": "hot"}]}],
            "actions": [{"type": "Action.OpenUrl", "title": "Open"}]}});
        let said: Vec<String> =
            blocks(Some(&card)).into_iter().map(|one| format!("{} {}", one.kind, one.text)).collect();
        assert_eq!(said, ["title Pump 7", "text hot", "button Open"]);
        assert_eq!(blocks(Some(&json!({"blocks": "x", "card": 1}))), []);
    }
}
