use serde_json::json;

use super::*;

#[test]
fn an_unsubscribe_link_is_shown_escaped_and_put_into_the_header_of_a_mail() {
    let compiled = Compiled::new(&Source {
        text: Some("Stop: {{ unsubscribe_url }}".into()),
        html: Some("<a href=\"{{ notification.unsubscribeUrl }}\">Stop</a>".into()),
        ..source()
    })
    .unwrap();
    let payload = FlatPayload::from(&json!({}));
    let with = Input { unsubscribe_url: Ok("https://example.com/a&b/u/x"), ..input(&payload) };
    let (content, warnings) = compiled.render(&with).unwrap();
    assert_eq!(content.text.as_deref(), Some("Stop: https://example.com/a&b/u/x"));
    assert_eq!(content.html.as_deref(), Some("<a href=\"https://example.com/a&amp;b/u/x\">Stop</a>"));
    assert_eq!(
        (content.mail_headers(), warnings),
        (
            vec![
                ("List-Unsubscribe", "<https://example.com/a&b/u/x>".to_owned()),
                ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".to_owned())
            ],
            vec![]
        )
    );
    assert!(compiled.unsubscribes() && compiled.placeholders().is_empty());
}

#[test]
fn without_a_link_it_is_empty_with_one_warning_that_says_why() {
    for missing in Missing::ALL {
        let source = Source { html: Some("<a href=\"{{ unsubscribe_url }}\">Stop</a>".into()), missing, ..source() };
        let (content, warnings) = render(&source, &json!({})).unwrap();
        assert_eq!(content.html.as_deref(), Some("<a href=\"\">Stop</a>"), "{missing:?}");
        assert_eq!((warnings.len(), content.mail_headers()), (1, vec![]));
        assert_eq!(warnings[0].message, "unsubscribe_url is empty, because the setting api.public_url is empty");
    }
}

#[test]
fn a_link_of_the_payload_comes_first_and_a_message_without_a_link_has_no_header() {
    let payload = FlatPayload::from(&json!({"unsubscribeUrl": "https://own.example.com/stop"}));
    let with = Input { unsubscribe_url: Ok("https://example.com/u/x"), ..input(&payload) };
    let own = Compiled::new(&text("{{ unsubscribe_url }}")).unwrap().render(&with).unwrap();
    assert_eq!((own.0.text.as_deref(), own.0.mail_headers()), (Some("https://own.example.com/stop"), vec![]));
    let none = Compiled::new(&text("Hello")).unwrap();
    assert!(!none.unsubscribes() && none.render(&with).unwrap().0.unsubscribe_url.is_none());
}
