//! The difference between two versions of a template, line by line.

use std::collections::BTreeMap;

use postcommit_channel::template::Source;
use serde::Serialize;

/// The product of the numbers of changed lines up to which lines are compared one by one. Beyond it, all lines between
/// the first and the last change are shown as removed and added.
const COMPARED: usize = 1_000_000;
/// The number of equal lines that are shown before and after a change.
const AROUND: usize = 3;

/// A line of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// `same`, `removed`, `added`, or `left out` for equal lines that are not shown.
    pub kind: &'static str,
    pub text: String,
}

/// A part of a template whose text differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    pub part: String,
    pub lines: Vec<Line>,
}

/// The parts that differ between two versions.
pub fn difference(from: &Source, to: &Source) -> Vec<Changed> {
    let (from, to) = (texts(from), texts(to));
    let names: std::collections::BTreeSet<_> = from.keys().chain(to.keys()).cloned().collect();
    let changed = names.into_iter().filter_map(|name| {
        let of = |texts: &BTreeMap<(u8, String), String>| texts.get(&name).cloned().unwrap_or_default();
        let (old, new) = (of(&from), of(&to));
        (old != new).then(|| Changed { part: name.1, lines: shortened(lines(&old, &new)) })
    });
    changed.collect()
}

/// The texts of a version by part, in the order in which they are shown.
fn texts(source: &Source) -> BTreeMap<(u8, String), String> {
    let pretty = |value: &serde_json::Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let brand = Some(&source.brand).filter(|brand| brand.as_object().is_some_and(|fields| !fields.is_empty()));
    let own = [
        ("to", source.to.clone()),
        ("subject", source.subject.clone()),
        ("text", source.text.clone()),
        ("html", source.html.clone()),
        ("data", source.data.as_ref().map(pretty)),
        ("layout", source.layout.clone()),
        ("missing values", Some(source.missing.name().to_owned())),
        ("date format", Some(source.date_format.clone())),
        ("time zone", Some(source.time_zone.clone())),
        ("brand", brand.map(pretty)),
    ];
    let own = (0..).zip(own).filter_map(|(place, (name, text))| Some(((place, name.to_owned()), text?)));
    let copies = source.parts.iter().map(|(name, text)| ((100, format!("copy of {name}")), text.clone()));
    own.chain(copies).collect()
}

fn lines(old: &str, new: &str) -> Vec<Line> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let most = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let line = |kind| move |text: &&str| Line { kind, text: (*text).to_owned() };
    let mut all: Vec<Line> = old[..head].iter().map(line("same")).collect();
    if a.len() * b.len() <= COMPARED {
        all.extend(compared(a, b));
    } else {
        all.extend(a.iter().map(line("removed")).chain(b.iter().map(line("added"))));
    }
    all.extend(old[old.len() - tail..].iter().map(line("same")));
    all
}

/// Compares by the longest common subsequence.
fn compared(a: &[&str], b: &[&str]) -> Vec<Line> {
    let width = b.len() + 1;
    let mut longest = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = if a[i] == b[j] {
                longest[(i + 1) * width + j + 1] + 1
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut all) = (0, 0, Vec::new());
    let mut put = |kind, text: &str| all.push(Line { kind, text: text.to_owned() });
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            put("same", a[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && longest[(i + 1) * width + j] >= longest[i * width + j + 1]) {
            put("removed", a[i]);
            i += 1;
        } else {
            put("added", b[j]);
            j += 1;
        }
    }
    all
}

/// Leaves out equal lines that are far from a change.
fn shortened(lines: Vec<Line>) -> Vec<Line> {
    let changes: Vec<usize> =
        lines.iter().enumerate().filter(|(_, line)| line.kind != "same").map(|(place, _)| place).collect();
    let is_near = |place: usize| {
        let next = changes.partition_point(|change| *change < place);
        let near = |change: Option<&usize>| change.is_some_and(|change| change.abs_diff(place) <= AROUND);
        near(changes.get(next)) || next.checked_sub(1).is_some_and(|before| near(changes.get(before)))
    };
    let (mut short, mut left) = (Vec::new(), 0);
    let said = |left: usize| Line { kind: "left out", text: format!("{left} equal lines") };
    for (place, line) in lines.into_iter().enumerate() {
        if is_near(place) {
            short.extend((left > 0).then(|| said(left)));
            short.push(line);
            left = 0;
        } else {
            left += 1;
        }
    }
    short.extend((left > 0).then(|| said(left)));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(old: &str, new: &str) -> Vec<String> {
        let sign = |line: Line| match line.kind {
            "same" => format!("  {}", line.text),
            "removed" => format!("- {}", line.text),
            "added" => format!("+ {}", line.text),
            _ => format!("… {}", line.text),
        };
        shortened(lines(old, new)).into_iter().map(sign).collect()
    }

    #[test]
    fn lines_are_compared_and_far_ones_left_out() {
        assert_eq!(said("a\nb\nc", "a\nx\nc"), ["  a", "- b", "+ x", "  c"]);
        assert_eq!(said("", "a"), ["+ a"]);
        assert_eq!(said("a\na", "a"), ["  a", "- a"]);
        let old: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let new = old.join("\n").replace("\n9\n", "\nnine\n");
        let told = said(&old.join("\n"), &new);
        assert_eq!((told[0].as_str(), told[1].as_str(), told.len()), ("… 6 equal lines", "  6", 10));
        assert_eq!(told[4..6], ["- 9", "+ nine"]);
    }

    #[test]
    fn long_texts_with_nothing_in_common_are_not_compared_one_by_one() {
        let text = |prefix: &str| (0..5_000).map(|n| format!("{prefix}{n}\n")).collect::<String>();
        assert_eq!(said(&text("a"), &text("b")).len(), 10_000);
    }

    #[test]
    fn only_parts_that_differ_are_shown() {
        let text = |text: &str| Source { text: Some(text.into()), ..Source::default() };
        let with_layout = Source { layout: Some("mail".into()), ..text("b") };
        let parts: Vec<String> = difference(&text("a"), &with_layout).into_iter().map(|one| one.part).collect();
        assert_eq!(parts, ["text", "layout"]);
    }
}
