//! Tests of templates, from the source to the rendered content.

use serde_json::{Value, json};

use super::*;
use crate::render::Content;

mod unsubscribed;

/// The event that the acceptance tests of section C of the requirements use.
fn event() -> Value {
    json!({
        "bookingId": 12345, "guestId": 678, "listingId": 10, "bookingStatus": "Confirmed",
        "guestPhone": "+919876543210", "guestEmail": "guest@example.com", "guestName": "Asha Rao",
        "listingName": "Sea View", "checkinDate": "2026-03-15", "checkoutDate": "2026-03-17",
        "occurredAtUtc": "2026-03-01T20:30:00Z"
    })
}

fn source() -> Source {
    Source::default()
}

fn text(template: &str) -> Source {
    Source { text: Some(template.to_owned()), ..source() }
}

fn html(template: &str) -> Source {
    Source { html: Some(template.to_owned()), ..source() }
}

fn input(payload: &FlatPayload) -> Input<'_> {
    let note = Note { event_type: "booking.confirmed", title: Some("The title"), ..Note::default() };
    Input { payload, note, user: None, language: None, time_zone: None, unsubscribe_url: Err(NO_PUBLIC_URL) }
}

fn render(source: &Source, payload: &Value) -> Result<(Content, Vec<Warning>), Failure> {
    let compiled = Compiled::new(source).unwrap_or_else(|problem| panic!("{problem}"));
    compiled.render(&input(&FlatPayload::from(payload)))
}

fn rendered(template: &str, payload: &Value) -> String {
    render(&text(template), payload).unwrap_or_else(|failure| panic!("{template}: {failure}")).0.text.unwrap()
}

fn rendered_html(template: &str, payload: &Value) -> String {
    render(&html(template), payload).unwrap_or_else(|failure| panic!("{template}: {failure}")).0.html.unwrap()
}

fn problem(source: &Source) -> String {
    Compiled::new(source).map(drop).unwrap_err().to_string()
}

fn limit(source: &Source, payload: &Value) -> Cap {
    match render(source, payload) {
        Err(Failure::Limit { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn c5_every_field_of_the_event_is_a_placeholder_in_every_spelling() {
    let shown = [
        ("booking", "Id", "12345"),
        ("guest", "Id", "678"),
        ("listing", "Id", "10"),
        ("booking", "Status", "Confirmed"),
        ("guest", "Phone", "+919876543210"),
        ("guest", "Email", "guest@example.com"),
        ("guest", "Name", "Asha Rao"),
        ("listing", "Name", "Sea View"),
        ("checkin", "Date", "15-Mar-2026"),
        ("checkout", "Date", "17-Mar-2026"),
        ("occurred", "AtUtc", "01-Mar-2026"),
    ];
    assert_eq!(shown.len(), event().as_object().unwrap().len());
    for (first, second, value) in shown {
        let bare = format!("{first}{second}");
        let spellings = [
            bare.clone(),
            bare.to_uppercase(),
            format!("{first}.{second}"),
            format!("{first}.{}", second.to_lowercase()),
            format!("{first}_{}", second.to_lowercase()),
        ];
        for spelling in spellings {
            assert_eq!(rendered(&format!("{{{{{spelling}}}}}"), &event()), value, "{spelling}");
            // A nested payload gives the same result.
            let nested = json!({first: {second: event()[&bare]}});
            assert_eq!(rendered(&format!("{{{{ {spelling} }}}}"), &nested), value, "{spelling}, nested");
        }
    }
}

#[test]
fn c5_a_missing_placeholder_is_empty_kept_or_refused() {
    let template =
        |missing| Source { missing, ..text("Dear {{ GuestName|upper }},\nroom {{ room|default('any') }} {{bed}}") };
    let (content, warnings) = render(&template(Missing::Empty), &json!({"bed": null})).unwrap();
    assert_eq!(content.text.unwrap(), "Dear ,\nroom any ");
    let found: Vec<_> = warnings.iter().map(|it| (it.placeholder.as_deref().unwrap(), it.line, it.column)).collect();
    assert_eq!(found, [("GuestName", Some(1), Some(6)), ("bed", Some(2), Some(32))]);
    assert_eq!(warnings[0].message, "the payload has no value for GuestName: nothing is printed");
    assert_eq!(warnings[0].part, "text");

    let (content, warnings) = render(&template(Missing::Keep), &json!({})).unwrap();
    assert_eq!(content.text.unwrap(), "Dear {{ GuestName|upper }},\nroom any {{bed}}");
    assert_eq!(warnings.len(), 2);

    let failure = render(&template(Missing::Refuse), &json!({"bed": ""})).unwrap_err();
    assert_eq!(failure, Failure::Missing { names: vec!["GuestName".to_owned()] });
    assert_eq!(failure.code(), "missing_data");
    assert_eq!(failure.to_string(), "the payload has no value for GuestName");
    assert!(render(&template(Missing::Refuse), &json!({"bed": 1, "guest": {"name": "A"}})).unwrap().1.is_empty());
}

#[test]
fn c5_bare_dates_are_written_in_the_format_and_time_zone_of_the_template() {
    let template = Source {
        date_format: "%d/%m/%Y %H:%M".to_owned(),
        time_zone: "Asia/Kolkata".to_owned(),
        ..text("{{ occurredAtUtc }} {{ checkinDate|date('%-d %B') }} {{ occurredAtUtc|date('%H:%M', 'Europe/Paris') }}")
    };
    assert_eq!(render(&template, &event()).unwrap().0.text.unwrap(), "02/03/2026 02:00 15 March 21:30");
    // The recipient's time zone takes precedence over that of the template. An unknown time zone is ignored.
    let compiled = Compiled::new(&template).unwrap();
    let payload = FlatPayload::from(&event());
    for (zone, begin) in [("America/New_York", "01/03/2026 15:30"), ("Mars/Olympus", "02/03/2026 02:00")] {
        let (content, _) = compiled.render(&Input { time_zone: Some(zone), ..input(&payload) }).unwrap();
        assert!(content.text.unwrap().starts_with(begin), "{zone}");
    }
    // `plain` prints the value of the payload, and comparisons use that value.
    let template =
        "{{ checkinDate|plain }} {{ 'soon' if checkinDate < '2026-04-01' else 'late' }} {{ checkinDate|upper }}";
    assert_eq!(rendered(template, &event()), "2026-03-15 soon 15-MAR-2026");
    assert!(problem(&Source { date_format: "%".to_owned(), ..text("") }).starts_with("date_format: "));
    assert!(problem(&Source { time_zone: "Mars".to_owned(), ..text("") }).starts_with("time_zone: "));
}

#[test]
fn numbers_keep_their_digits_and_are_written_as_the_language_does() {
    let payload = json!({"price": 1234567.5, "nights": 3, "text": "19.90", "zero": 0});
    for (template, written) in [
        ("{{ price }}", "1234567.5"),
        ("{{ price|number }} {{ price|number(2) }} {{ price|number(0) }}", "1,234,567.5 1,234,567.50 1,234,568"),
        ("{{ price|currency('INR') }} {{ price|currency('JPY', '¥') }}", "INR 1,234,567.50 ¥1,234,568"),
        ("{{ text|times(nights) }} {{ nights|minus(5) }} {{ nights|plus(0.25) }}", "59.70 -2 3.25"),
        ("{{ nights|minus(5)|currency('EUR', '€') }}", "-€2.00"),
        ("{{ 'long' if nights >= 3 and price > 1000000.25 else 'short' }}", "long"),
        ("{% if zero %}a{% endif %}{% if nights %}b{% endif %}{% if text == 19.9 %}c{% endif %}", "bc"),
        ("{{ nights in [1, 3] }} {{ nights not in [1, 3] }} {{ 'ig' in 'nights' }}", "true false true"),
    ] {
        assert_eq!(rendered(template, &payload), written, "{template}");
    }
    let compiled = Compiled::new(&text("{{ price|currency('INR', '₹') }}")).unwrap();
    let payload = FlatPayload::from(&payload);
    let (content, _) = compiled.render(&Input { language: Some("en-IN"), ..input(&payload) }).unwrap();
    assert_eq!(content.text.unwrap(), "₹12,34,567.50");
    // The digits are those of the payload, not of a floating-point number.
    let raw = serde_json::value::RawValue::from_string(r#"{"price": 1500.50, "id": 12345678901234567890}"#.to_owned());
    let payload = FlatPayload::new(&raw.unwrap());
    let compiled = Compiled::new(&text("{{ price }} {{ id }}")).unwrap();
    assert_eq!(compiled.render(&input(&payload)).unwrap().0.text.unwrap(), "1500.50 12345678901234567890");
}

#[test]
fn loops_conditions_and_texts() {
    let payload = json!({"items": [{"name": "tea", "price": {"amount": 2}}, {"Name": "cake", "priceAmount": 4.5}],
                         "tags": ["a", "b"], "empty": [], "vip": true, "name": "ASHA de rao"});
    for (template, written) in [
        (
            "{% for Item in items %}{{ loop.index }}. {{ item.NAME }}: {{ item.price.amount }}\n{% endfor %}",
            "1. tea: 2\n2. cake: 4.5\n",
        ),
        ("{% for x in empty %}{{ x }}{% else %}none{% endfor %}", "none"),
        (
            "{{ items[1].name }} {{ items.0.name }} {{ tags|join('/') }} {{ tags }} {{ items|length }}",
            "cake tea a/b a, b 2",
        ),
        ("{{ tags|first }}{{ tags|last }} {{ tags|json }}", "ab [\"a\",\"b\"]"),
        ("{% if not vip %}a{% elif tags and vip %}b{% else %}c{% endif %}", "b"),
        ("{{ name|title }} {{ name|capitalize }} {{ name|lower|truncate(6) }}", "Asha De Rao Asha de rao asha…"),
        ("{{ nick or name|trim }} {{ 'VIP' if vip }}{{ 'x' if nick }}", "ASHA de rao VIP"),
        ("{{ 'a b&c/é'|urlencode }} {{ '+919876543210'|phone }}", "a%20b%26c%2F%C3%A9 +91 98765 43210"),
        ("{% if nick is undefined and name is text and items is list %}yes{% endif %}", "yes"),
        ("{# no #}{% raw %}{{ x }} {%{% endraw %}{{ '{' }}{", "{{ x }} {%{{"),
        ("a\n{% if vip %}\nb\n{% endif %}\nc {{- ' d' }}", "a\nb\nc d"),
        // A line that contains nothing but tags vanishes from the output.
        ("end {% if vip %}yes{% endif %}\nlast", "end yes\nlast"),
        ("two:{% for x in tags %}\n- {{ x }}{% endfor %}\n.", "two:\n- a\n- b\n."),
        ("  {% if vip %}{# why #}\n  b\n  {% endif %}\n  c {% if vip %} d\n{% endif %}", "  b\n  c  d\n"),
        ("{{ nick }} {% if vip %}\nx{% endif %}\n", " \nx\n"),
        ("{{ title }} {{ notification.eventType }}", "The title booking.confirmed"),
        ("{{ vip }} {{ nick == 'x' }} {{ nick < 3 }}", "true false false"),
    ] {
        assert_eq!(rendered(template, &payload), written, "{template}");
    }
    let (_, warnings) =
        render(&text("{% for x in nothing %}{{ x }}{% endfor %}{% if nothing %}{% endif %}"), &payload).unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].placeholder.as_deref(), Some("nothing"));
}

#[test]
fn html_is_escaped_by_part_and_not_by_name() {
    let payload = json!({"name": "<b a='1' b=\"2\">&</b>", "page.html": "<i>", "note": "a\n<b>"});
    let escaped = "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;&lt;/b&gt;";
    assert_eq!(
        rendered_html("<p title=\"{{ name }}\">{{ name }}</p>", &payload),
        format!("<p title=\"{escaped}\">{escaped}</p>")
    );
    assert_eq!(rendered("{{ name }}", &payload), "<b a='1' b=\"2\">&</b>");
    assert_eq!(
        rendered_html("{{ note|nl2br }} {{ name|upper|json }}", &payload),
        "a<br>\n&lt;b&gt; &quot;&lt;B A=&#39;1&#39; B=\\&quot;2\\&quot;&gt;&amp;&lt;/B&gt;&quot;"
    );
    assert_eq!(rendered_html("{{ '<hr>'|safe }}", &payload), "<hr>");
    // A kept placeholder is escaped, too.
    let kept = Source { missing: Missing::Keep, ..html("{{ x|date('<') }}") };
    assert_eq!(render(&kept, &payload).unwrap().0.html.unwrap(), "{{ x|date(&#39;&lt;&#39;) }}");
    // A partial is escaped where html includes it, and not where text does.
    let both = Source {
        html: Some("{% include 'page.txt' %}".to_owned()),
        text: Some("{% include 'page.txt' %}".to_owned()),
        parts: BTreeMap::from([("page.txt".to_owned(), "{{ pageHtml }}".to_owned())]),
        ..source()
    };
    let (content, _) = render(&both, &payload).unwrap();
    assert_eq!((content.html.as_deref(), content.text.as_deref()), (Some("&lt;i&gt;"), Some("<i>")));
    let warnings = Compiled::new(&html("{{ x|safe }}")).unwrap().warnings().to_vec();
    assert!(warnings[0].message.contains("without escaping"), "{warnings:?}");
    assert!(problem(&text("{{ x|nl2br }}")).contains("html only"));
    // Escaping does not protect an attribute without quotes, or a script, so a placeholder is refused there.
    for (template, message) in [
        ("<p title={{ x }}>", "html, line 1, column 10: the value of an attribute is not in quotes; put it in quotes"),
        ("<p title = {{ x }}>", "in quotes"),
        ("<SCRIPT>a()</script><Script>let a = '{{ x }}'", "a placeholder is not allowed inside a script"),
    ] {
        assert!(problem(&html(template)).contains(message), "{template}");
    }
    assert_eq!(
        rendered_html("<script>a()</script>a={{ b }} <p>={{ b }}", &json!({"b": 1})),
        "<script>a()</script>a=1 <p>=1"
    );
}

#[test]
fn a_link_leads_only_where_an_action_url_may() {
    for (url, ok) in [
        ("https://example.com/a?b=1&c=2", true),
        ("mailto:a@example.com", true),
        ("tel:+14155550100", true),
        ("javascript:alert(1)", false),
        (" javascript:alert(1)", false),
        ("JaVaScRiPt:alert(1)", false),
        ("java\nscript:alert(1)", false),
        ("data:text/html,x", false),
        ("vbscript:x", false),
        ("/path", false),
        ("//example.com", false),
        ("https:example.com", false),
        ("https://user:password@example.com", false),
        ("https://a b", false),
        ("", false),
    ] {
        for template in ["<a href=\"{{ url }}\">x</a>", "<img SRC = '{{ url }}'>", "{{ url|link }}"] {
            let (content, warnings) = render(&html(template), &json!({"url": url})).unwrap();
            assert_eq!(
                content.html.unwrap().contains("example") || url.starts_with("tel"),
                ok || url.starts_with("tel"),
                "{url:?} in {template}"
            );
            assert_eq!(warnings.is_empty(), ok, "{url:?} in {template}: {warnings:?}");
        }
    }
    let (_, warnings) = render(&html("<a href=\"{{ url }}\">"), &json!({"url": "javascript:x"})).unwrap();
    assert_eq!(warnings[0].message, "url is not a link and is left out; allowed are http, https, mailto and tel links");
}

#[test]
fn channel_data_is_a_tree_into_which_values_are_inserted() {
    let hostile = "\"}],\"to\":\"other\\";
    let template = Source {
        data: Some(json!({
            "name": "booking_confirmed", "{{ key }}": 1.5,
            "parameters": [{"text": "Dear {{ guestName }}"}, {"text": "{{checkinDate}}"}, "{{ bookingId }}",
                           "{{ bookingId|json }}",
                           "{{ tags|json }}", "{{ gone|json }}", "{{ guestName|json }}", null, true]
        })),
        ..source()
    };
    let mut payload = event();
    payload["guestName"] = hostile.into();
    payload["tags"] = json!([1, {"a": null}]);
    let (content, warnings) = render(&template, &payload).unwrap();
    let data: Value = serde_json::from_str(content.data.unwrap().get()).unwrap();
    assert_eq!(
        data,
        json!({
            "name": "booking_confirmed", "{{ key }}": 1.5,
            "parameters": [{"text": format!("Dear {hostile}")}, {"text": "15-Mar-2026"}, "12345", 12345,
                           [1, {"a": null}], null, hostile, null, true]
        })
    );
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].part, "data.parameters[5]");
    assert!(
        problem(&Source { data: Some(json!({"a": ["{{ x"]})), ..source() })
            .starts_with("data.a[0], line 1, column 1: ")
    );
    let large = Source { data: Some(json!(["{{ x }}", "{{ x }}"])), ..source() };
    assert_eq!(limit(&large, &json!({"x": "y".repeat(40_000)})), Cap::Output);
    // Two paths with the same spelling are two strings.
    let alike = Source { data: Some(json!({"a.b": "{{ x }}1", "a": {"b": "{{ x }}2"}})), ..source() };
    assert_eq!(render(&alike, &json!({"x": ""})).unwrap().0.data.unwrap().get(), r#"{"a":{"b":"2"},"a.b":"1"}"#);
}

#[test]
fn layouts_partials_and_brand() {
    let template = Source {
        html: Some("<p>{{ brand.Name }}, {{ guest.name }}</p>{% include \"sign\" %}".to_owned()),
        layout: Some("frame".to_owned()),
        parts: BTreeMap::from([
            ("frame".to_owned(), "<main>\n{{ content }}\n</main>{% include 'sign' %}".to_owned()),
            ("sign".to_owned(), "<i>{{ brand.sign|default('Bye') }}</i>{".to_owned()),
        ]),
        brand: json!({"name": "Sea & Sun"}),
        ..source()
    };
    let (content, warnings) = render(&template, &json!({"guestName": "Asha"})).unwrap();
    assert_eq!(content.html.unwrap(), "<main>\n<p>Sea &amp; Sun, Asha</p><i>Bye</i>{\n</main><i>Bye</i>{");
    assert!(warnings.is_empty());
    let with = |parts: &[(&str, &str)], html: &str| Source {
        html: Some(html.to_owned()),
        layout: Some("frame".to_owned()),
        parts: parts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        ..source()
    };
    for (parts, html, message) in [
        (&[][..], "", "layout: there is no layout \"frame\"; create it first"),
        (
            &[("frame", "x")],
            "",
            "layout frame: the layout has no {{ content }}; add it where the template is to be inserted",
        ),
        (
            &[("frame", "{{ content }}")],
            "\n{% include 'x' %}",
            "html, line 2, column 1: there is no partial \"x\"; create it first",
        ),
        (
            &[("frame", "{{ content }}"), ("a", "{% include 'a' %}")],
            "{% include 'a' %}",
            "partial a, line 1, column 1: the partial \"a\" includes itself; remove the include",
        ),
        (
            &[("frame", "{% if a %}{{ content }}{% endif %}")],
            "{% endif %}",
            "html, line 1, column 1: `endif` has no `if` before it",
        ),
        (
            &[("frame", "{{ content }}"), ("a", "{% if x %}")],
            "{% include 'a' %}{% endif %}",
            "partial a, line 1, column 11: {% endif %} is missing",
        ),
    ] {
        assert_eq!(problem(&with(parts, html)), message);
    }
    // A partial sees the variables of the loop around it.
    let rows = Source {
        parts: BTreeMap::from([("row".to_owned(), "{{ item.n }};".to_owned())]),
        ..text("{% for item in items %}{% include 'row' %}{% endfor %}")
    };
    assert_eq!(render(&rows, &json!({"items": [{"n": 1}, {"n": 2}]})).unwrap().0.text.unwrap(), "1;2;");
}

#[test]
fn the_shipped_layout_is_complete_html_with_inlined_styles() {
    let [(name, layout)] = LAYOUTS;
    let template = |brand: Value| Source {
        html: Some("<p>Dear {{ guestName }}</p>".to_owned()),
        layout: Some(name.to_owned()),
        parts: BTreeMap::from([(name.to_owned(), layout.to_owned())]),
        brand,
        missing: Missing::Refuse,
        ..source()
    };
    let (content, warnings) = render(&template(json!({})), &event()).unwrap();
    let html = content.html.unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"), "{html}");
    assert!(html.contains("max-width:600px") && html.contains("<p>Dear Asha Rao</p>"));
    assert!(!html.contains("<style") && !html.contains("<link") && !html.contains("{%") && !html.contains("{{"));
    assert_eq!(html.matches("<table").count(), html.matches("</table>").count());
    assert_eq!(content.text.unwrap(), "Dear Asha Rao");
    assert!(warnings.is_empty());
    let brand = json!({"name": "Sea", "logo_url": "https://example.com/l.png", "color": "#123456",
                       "footer": "You booked.", "address": "Goa"});
    let (content, _) = render(&template(brand), &event()).unwrap();
    assert!(content.html.unwrap().contains("src=\"https://example.com/l.png\""));
    assert_eq!(content.text.unwrap(), "Sea\n\nDear Asha Rao\n\nYou booked.\n\nGoa");
}

#[test]
fn a_subject_is_one_line_and_bodies_have_no_control_characters() {
    let template = Source {
        subject: Some("Hello {{ name }}\n".to_owned()),
        text: Some("{{ name }}".to_owned()),
        html: Some("{{ name }}".to_owned()),
        ..source()
    };
    let (content, _) = render(&template, &json!({"name": "A\r\nBcc: x@example.com\r\u{0}\u{1b}[1m\tB"})).unwrap();
    assert_eq!(content.subject.unwrap(), "Hello A Bcc: x@example.com [1m B");
    assert_eq!(content.text.unwrap(), "A\nBcc: x@example.com\n[1m\tB");
    assert_eq!(content.html.unwrap(), "A\nBcc: x@example.com\n[1m\tB");
}

#[test]
fn the_address_is_rendered_text_without_spaces_around_it() {
    let to = |template: &str, payload: &Value| {
        let compiled = Compiled::new(&Source { to: Some(template.to_owned()), missing: Missing::Keep, ..source() });
        compiled.unwrap().address(&input(&FlatPayload::from(payload))).unwrap()
    };
    assert_eq!(to(" {{ guest.phone }}\n", &event()).as_deref(), Some("+919876543210"));
    assert_eq!(to("{{ hostPhone or guestPhone }}", &event()).as_deref(), Some("+919876543210"));
    assert_eq!(to("{{ hostPhone }}", &event()), None);
    assert_eq!(Compiled::new(&source()).unwrap().address(&input(&FlatPayload::default())).unwrap(), None);
}

#[test]
fn users_are_read_apart_from_the_payload() {
    let compiled = Compiled::new(&text("{{ user.Name }} {{ user.data.city }} {{ userName }}")).unwrap();
    let payload = FlatPayload::from(&json!({"userName": "payload"}));
    let user = json!({"name": "Asha", "data": {"city": "Goa"}});
    let (content, _) = compiled.render(&Input { user: Some(&user), ..input(&payload) }).unwrap();
    assert_eq!(content.text.unwrap(), "Asha Goa payload");
    assert_eq!(compiled.render(&input(&payload)).unwrap().0.text.unwrap(), "payload  payload");
}

#[test]
fn placeholders_are_listed_and_unknown_ones_are_warned_of() {
    let template = Source {
        subject: Some("{{ Guest.Name }}".to_owned()),
        text: Some(
            "{{ guestName }}{% for i in items %}{{ i.x }}{% endfor %}\n{{ user.name }}{{ brand.name }}\
                    {{ title }}{{ rooms[0].no }}"
                .to_owned(),
        ),
        ..source()
    };
    let compiled = Compiled::new(&template).unwrap();
    let names: Vec<_> = compiled.placeholders().iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["Guest.Name", "items", "rooms[0].no"]);
    let known = FlatPayload::from(&json!({"guest": {"name": ""}, "rooms": []})).names();
    let unknown = compiled.unknown(&known);
    assert_eq!(unknown.len(), 1);
    assert_eq!(
        (unknown[0].placeholder.as_deref(), unknown[0].line, unknown[0].column),
        (Some("items"), Some(1), Some(16))
    );
    assert_eq!(compiled.unknown(&["guestName".to_owned(), "ITEMS".to_owned(), "rooms".to_owned()].into()), []);
}

#[test]
fn a_mistake_is_told_with_its_place() {
    for (template, message) in [
        ("a\n  {{ x|uper }}", "text, line 2, column 8: `uper` is not a filter; allowed are"),
        ("{% set x = 1 %}", "text, line 1, column 10: = is not allowed in a tag"),
        ("{% macro x() %}", "text, line 1, column 4: `macro` is not a tag; allowed are if, elif"),
        ("{% extends 'x' %}", "text, line 1, column 4: `extends` is not a tag"),
        ("{% import 'x' %}", "`import` is not a tag"),
        ("{% block x %}", "`block` is not a tag"),
        ("{%%}", "the tag is empty"),
        ("{% if x %}", "text, line 1, column 11: {% endif %} is missing"),
        ("{% else %}", "`else` has no `if` or `for`"),
        ("{% if a %}{% else %}{% elif b %}{% endif %}", "`elif` has no `if`"),
        ("{% if a %}{% endfor %}", "`endfor` has no `for`"),
        ("{% for a %}", "{% for item in items %}"),
        ("{% for a, b in c %}", "{% for item in items %}"),
        ("{% for a in b if c %}", "put an `if` inside"),
        ("{% include x %}", "in quotes"),
        ("{% endif 1 %}", "`endif` takes no arguments"),
        ("{{ 'a\\u12' }}", "text, line 1, column 1: "),
    ] {
        let told = problem(&text(template));
        assert!(told.contains(message), "{template}: {told}");
    }
    for (template, message) in [
        ("x\n{{ checkinDate|date('%Ö') }}", "text, line 2, column 1: filter date: "),
        (
            "{{ guestName|number }}",
            "text, line 1, column 1: filter number: the value is not a number of at most 30 digits",
        ),
        (
            "{% if bookingId > guestName %}{% endif %}",
            "a number can be compared only with a number, and a text only with a text",
        ),
        ("{% for x in guestName %}{% endfor %}", "the value of the tag `for` is not a list"),
        ("{{ guestName|truncate }}", "the filter truncate got 0 arguments; it takes 1"),
    ] {
        let failure = render(&text(template), &event()).unwrap_err();
        assert_eq!(failure.code(), "template_failed");
        assert!(failure.to_string().contains(message), "{template}: {failure}");
    }
}

/// Each template is stopped by a limit that does not depend on the clock.
#[test]
fn a_hostile_template_is_stopped_by_its_limits() {
    let many = json!({"l": (0..2000).collect::<Vec<_>>(), "big": "<".repeat(200_000),
                      "quote": "\"".repeat(1000), "amp": "&".repeat(60_000)});
    let loops = |inner: &str, times: usize| {
        format!("{}{inner}{}", "{% for a in l %}".repeat(times), "{% endfor %}".repeat(times))
    };
    for (template, cap) in [
        (loops("", 4), Cap::Steps),
        (loops(&"x".repeat(100), 2), Cap::Output),
        (loops("{% if big|upper == 'x' %}{% endif %}", 2), Cap::Work),
        ("{{ big }}{{ big }}".to_owned(), Cap::Output),
        (format!("{{{{ quote{} }}}}", "|json".repeat(20)), Cap::Value),
        ("{{ l|join(big) }}".to_owned(), Cap::Value),
        (loops("{{ l }}", 1), Cap::Output),
    ] {
        assert_eq!(limit(&text(&template), &many), cap, "{}", &template[..40.min(template.len())]);
    }
    assert_eq!(limit(&html("{{ amp }}"), &many), Cap::Output);
    // All strings of channel data share the limits of one rendering.
    let data = Source { data: Some(vec![Value::from(loops("", 2)); 600].into()), ..source() };
    assert_eq!(limit(&data, &many), Cap::Steps);
}

#[test]
fn a_hostile_template_is_refused_when_it_is_compiled() {
    let doubled: BTreeMap<String, String> = (0..12)
        .map(|i| (format!("p{i}"), format!("{{% include 'p{n}' %}}{{% include 'p{n}' %}}{{{{ x }}}}", n = i + 1)))
        .chain([("p12".to_owned(), "x".repeat(1000))])
        .collect();
    for (template, parts, message) in [
        ("{% if x %}".repeat(17), BTreeMap::new(), "16 levels"),
        ("{{ ".to_owned() + &"(".repeat(1000), BTreeMap::new(), "200"),
        ("{{ ".to_owned() + &"not ".repeat(30_000 / 4) + "x }}", BTreeMap::new(), "200"),
        ("{{ x".to_owned() + &"|upper".repeat(10_000), BTreeMap::new(), "200"),
        ("{% if x %}".to_owned() + &"{% elif x %}".repeat(5_000) + "{% endif %}", BTreeMap::new(), "100 branches"),
        ("{{x}}".repeat(6_000), BTreeMap::new(), "5000 tags"),
        ("x".repeat(65_537), BTreeMap::new(), "at most 65536"),
        ("{% include 'p0' %}".to_owned(), doubled, "5000 tags"),
        (String::new(), BTreeMap::from([("p".to_owned(), "x".repeat(65_537))]), "at most 65536"),
        ("{{ env('PATH') }}".to_owned(), BTreeMap::new(), "no functions"),
        ("{{ ''.__class__.__mro__() }}".to_owned(), BTreeMap::new(), "not expected"),
        ("{{ debug() }}".to_owned(), BTreeMap::new(), "no functions"),
        ("{% include '/etc/passwd' %}".to_owned(), BTreeMap::new(), "there is no partial"),
    ] {
        let told = problem(&Source { parts, ..text(&template) });
        assert!(told.contains(message), "{}: {told}", &template[..40.min(template.len())]);
    }
}

#[test]
fn nothing_of_the_process_can_be_read() {
    // Names of the engine, of the environment and of our own slots are ordinary names, and the payload has no such
    // fields.
    for name in [
        "PATH",
        "HOME",
        "env",
        "run",
        "p0",
        "v1",
        "self",
        "config",
        "range",
        "debug",
        "namespace",
        "caller",
        "super",
        "_",
        "loop",
    ] {
        let Ok(compiled) = Compiled::new(&text(&format!("{{{{ {name} }}}}{{{{ {name}.x }}}}"))) else { continue };
        let (content, warnings) = compiled.render(&input(&FlatPayload::default())).unwrap();
        assert_eq!((content.text.as_deref(), warnings.len()), (Some(""), 2), "{name}");
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let template =
        Source { html: Some("{{ guestName }} {{ occurredAtUtc }}".to_owned()), ..text("{{ bookingId|number }}") };
    let first = render(&template, &event()).unwrap().0;
    let again = render(&template, &event()).unwrap().0;
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
}
