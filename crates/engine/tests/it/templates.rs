//! Templates, versions, layouts and content settings in the store, on both databases.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use postcommit::Timestamp;
use postcommit_channel::model::Actor;
use postcommit_channel::template::{Missing, Source};
use postcommit_engine::store::{
    AuditFilter, ContentSettings, LayoutDraft, LayoutUse, MadeFrom, TemplateDraft, TemplateFilter, TemplatePosition,
    TemplateRow, Waiting,
};
use serde_json::json;

use crate::world::World;

const BOOKED: &str = "booking.confirmed";

fn draft(id: &str) -> TemplateDraft {
    TemplateDraft {
        id: id.into(),
        event_type: BOOKED.into(),
        channel: "sms".into(),
        active: true,
        once_per: "entity".into(),
        ..TemplateDraft::default()
    }
}

fn saying(text: &str) -> Source {
    Source { text: Some(text.into()), ..Source::default() }
}

impl World {
    async fn template(&self, draft: &TemplateDraft, source: &Source) -> TemplateRow {
        let written = (source, Some("a reason"));
        assert!(self.store.create_template(self.tenant, draft, written, &MadeFrom::default()).await.unwrap());
        self.found(&draft.id).await
    }

    async fn found(&self, id: &str) -> TemplateRow {
        self.store.template(self.tenant, id).await.unwrap().unwrap()
    }

    async fn current(&self, id: &str) -> Source {
        let version = self.found(id).await.version;
        self.store.template_version(self.tenant, id, version).await.unwrap().unwrap().1
    }

    async fn set_active(&self, id: &str, active: bool) -> bool {
        let from = self.found(id).await;
        let to = TemplateDraft { active, ..from.draft.clone() };
        self.store.update_template((&from, &to), None).await.unwrap()
    }

    /// Saves a layout with no other parts.
    async fn layout(&self, name: &str, source: &str, revision: i32) -> bool {
        let draft = LayoutDraft { name: name.into(), kind: "layout".into(), source: source.into() };
        let last_change = self.store.last_template_change(self.tenant).await.unwrap();
        let parts = BTreeMap::from([(name.to_owned(), source.to_owned())]);
        let used = LayoutUse { parts, last_change, ..LayoutUse::default() };
        self.store.save_layout(self.tenant, &draft, revision, &used).await.unwrap()
    }

    async fn ids(&self, filter: TemplateFilter) -> Vec<String> {
        let filter = TemplateFilter { tenant: Some(self.tenant), limit: 100, ..filter };
        self.store.template_rows(&filter).await.unwrap().into_iter().map(|row| row.draft.id).collect()
    }
}

on_both! {
    async fn a_template_is_used_from_a_moment_after_its_commit(world) {
        // The entry in the audit log is the last thing that a change writes before its commit. On SQLite claims and changes
        // exclude each other, so the time of the change itself will do.
        let newest = AuditFilter { limit: 1, ..AuditFilter::default() };
        let written = async || world.store.audit_rows(&newest).await.unwrap()[0].at;
        let used = async || {
            let rows = world.sql("SELECT active_since FROM postcommit.template WHERE id = 'a'", vec![]).await;
            rows[0].get::<Timestamp>(0).unwrap()
        };
        world.template(&draft("a"), &saying("x")).await;
        assert!(!world.is_postgres() || used().await >= written().await);
        world.set_active("a", false).await;
        world.set_active("a", true).await;
        assert!(!world.is_postgres() || used().await >= written().await, "activated again");
        let from = world.found("a").await;
        let moved = TemplateDraft { channel: "email".into(), ..from.draft.clone() };
        assert!(world.store.update_template((&from, &moved), None).await.unwrap());
        assert!(!world.is_postgres() || used().await >= written().await, "at another place");
        let since = used().await;
        let from = world.found("a").await;
        let same = TemplateDraft { language: "pt".into(), ..from.draft.clone() };
        assert!(world.store.update_template((&from, &same), None).await.unwrap());
        assert_eq!(used().await, since, "it is used on");
    }

    async fn c9_a_change_makes_a_new_version_and_the_earlier_ones_stay(world) {
        let data = json!({"name": "booked", "parameters": ["{{ guestName }}", 1.5, null]});
        let full = Source {
            to: Some("{{ guestPhone }}".into()), subject: Some("Booked".into()), text: Some("täxt".into()), html: Some("<p>".into()), data: Some(data),
            layout: Some("mail".into()), parts: BTreeMap::from([("mail".into(), "{{ content }}".into())]), brand: json!({"name": "Inn"}), missing: Missing::Refuse,
            date_format: "%d.%m.%Y".into(), time_zone: "Asia/Kolkata".into(),
        };
        let first = world.template(&draft("guest"), &full).await;
        assert_eq!((first.version, first.revision, first.draft.once_per.as_str()), (1, 1, "entity"));
        let store = world.store.by(Actor::new("ada"));
        let written = Some((&saying("second"), Some("shorter"), &MadeFrom::default()));
        assert!(store.update_template((&first, &first.draft), written).await.unwrap());
        assert_eq!(world.found("guest").await.version, 2);
        assert_eq!(world.current("guest").await, saying("second"));
        let (about, source) = world.store.template_version(world.tenant, "guest", 1).await.unwrap().unwrap();
        assert_eq!((source, about.note.as_deref()), (full, Some("a reason")), "what was used stays as it was");
        let versions = world.store.template_versions(world.tenant, "guest", None, 10).await.unwrap();
        let told: Vec<_> = versions.iter().map(|row| (row.version, row.created_by.as_str(), row.note.as_deref())).collect();
        assert_eq!(told, [(2, "ada", Some("shorter")), (1, "system", Some("a reason"))]);
        assert_eq!(world.store.template_versions(world.tenant, "guest", Some(2), 10).await.unwrap().len(), 1);
        assert!(world.store.template_version(world.tenant, "guest", 3).await.unwrap().is_none());
    }

    async fn c9_a_change_of_the_place_alone_makes_no_version(world) {
        let from = world.template(&draft("guest"), &saying("x")).await;
        let to = TemplateDraft { language: "pt-BR".into(), scope_type: "listing".into(), scope_id: "10".into(), ..from.draft.clone() };
        assert!(world.store.update_template((&from, &to), None).await.unwrap());
        let now = world.found("guest").await;
        assert_eq!((now.draft, now.version, now.revision), (to, 1, 2));
    }

    async fn c1_one_active_template_per_place(world) {
        world.template(&draft("first"), &saying("x")).await;
        let create = async |draft: TemplateDraft| {
            world.store.create_template(world.tenant, &draft, (&saying("y"), None), &MadeFrom::default()).await.unwrap()
        };
        assert!(!create(draft("second")).await, "the place is taken");
        assert_eq!(world.store.template_at(world.tenant, &draft("second")).await.unwrap().as_deref(), Some("first"));
        assert!(create(TemplateDraft { active: false, ..draft("second") }).await);
        assert!(!world.set_active("second", true).await);
        for (id, other) in [
            ("other-type", TemplateDraft { event_type: "booking.cancelled".into(), ..draft("") }),
            ("other-channel", TemplateDraft { channel: "email".into(), ..draft("") }),
            ("other-audience", TemplateDraft { audience: "host".into(), ..draft("") }),
            ("other-language", TemplateDraft { language: "de".into(), ..draft("") }),
            ("other-scope", TemplateDraft { scope_type: "listing".into(), scope_id: "10".into(), ..draft("") }),
        ] {
            assert!(create(TemplateDraft { id: id.into(), ..other }).await, "{id}");
        }
        assert!(world.set_active("first", false).await);
        assert!(world.set_active("second", true).await, "the place is free");
        assert!(!world.set_active("first", true).await);
    }

    async fn c9_a_deleted_template_is_hidden_and_comes_back_with_its_versions(world) {
        world.template(&draft("guest"), &saying("one")).await;
        assert!(!world.store.delete_template(&world.found("guest").await).await.unwrap(), "it is active");
        assert!(world.set_active("guest", false).await);
        assert!(world.store.delete_template(&world.found("guest").await).await.unwrap());
        assert!(world.store.template(world.tenant, "guest").await.unwrap().is_none());
        assert_eq!(world.ids(TemplateFilter::default()).await, Vec::<String>::new());
        assert_eq!((world.count("template").await, world.count("template_version").await), (1, 1));
        let back = world.template(&TemplateDraft { channel: "email".into(), ..draft("guest") }, &saying("two")).await;
        assert_eq!((back.version, back.draft.channel.as_str(), back.draft.active), (2, "email", true));
        let (_, old) = world.store.template_version(world.tenant, "guest", 1).await.unwrap().unwrap();
        assert_eq!(old, saying("one"));
    }

    async fn c9_templates_are_listed_by_filter_and_page(world) {
        for n in 0..7 {
            let channel = if n % 2 == 0 { "sms" } else { "email" };
            world.template(&TemplateDraft { channel: channel.into(), audience: format!("a{n}"), ..draft(&format!("t{n}")) }, &saying("x")).await;
        }
        let scoped = TemplateDraft { scope_type: "listing".into(), scope_id: "10".into(), language: "de".into(), ..draft("B-scoped") };
        let source = Source { parts: BTreeMap::from([("foot".into(), "bye".into())]), ..saying("x") };
        world.template(&scoped, &source).await;
        assert!(world.set_active("t3", false).await);
        let all = TemplateFilter::default;
        assert_eq!(world.ids(TemplateFilter { channel: Some("email".into()), ..all() }).await, ["t1", "t3", "t5"]);
        assert_eq!(world.ids(TemplateFilter { active: Some(false), ..all() }).await, ["t3"]);
        assert_eq!(world.ids(TemplateFilter { audience: Some("a2".into()), event_type: Some(BOOKED.into()), ..all() }).await, ["t2"]);
        assert_eq!(world.ids(TemplateFilter { language: Some("de".into()), ..all() }).await, ["B-scoped"]);
        assert_eq!(world.ids(TemplateFilter { scope_type: Some("listing".into()), scope_id: Some("10".into()), ..all() }).await, ["B-scoped"]);
        assert_eq!(world.ids(TemplateFilter { layout: Some("foot".into()), ..all() }).await, ["B-scoped"]);
        assert_eq!(world.ids(TemplateFilter { event_type: Some("other".into()), ..all() }).await, Vec::<String>::new());
        for (words, ids) in [("SCOPED", vec!["B-scoped"]), ("t3", vec!["t3"]), ("%", vec![]), ("words of nobody", vec![])] {
            assert_eq!(world.ids(TemplateFilter { words: Some(words.into()), ..all() }).await, ids, "{words}");
        }
        assert_eq!(world.ids(TemplateFilter { words: Some("X".into()), ..all() }).await.len(), 8, "by the text of the current version");
        world.template(&TemplateDraft { audience: "fr".into(), ..draft("fr") }, &saying("Élodie arrive")).await;
        assert_eq!(world.ids(TemplateFilter { words: Some("Élodie".into()), ..all() }).await, ["fr"], "with a capital beyond A to Z");
        // The pages cover all tenants, ordered by tenant and by bytes.
        let other = world.store.create_tenant("other").await.unwrap();
        world.store.create_template(other, &draft("a"), (&saying("x"), None), &MadeFrom::default()).await.unwrap();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = world.store.template_rows(&TemplateFilter { after, limit: 2, ..all() }).await.unwrap();
            seen.extend(page.iter().map(|row| format!("{}/{}", row.tenant, row.draft.id)));
            let Some(last) = page.last() else { break };
            after = Some(TemplatePosition(last.tenant_id, last.draft.id.clone()));
        }
        let expected = ["default/B-scoped", "default/fr", "default/t0", "default/t1", "default/t2", "default/t3", "default/t4", "default/t5", "default/t6", "other/a"];
        assert_eq!(seen, expected);
    }

    async fn c9_of_concurrent_changes_one_is_made(world) {
        let from = world.template(&draft("guest"), &saying("x")).await;
        let changes = (0..8).map(async |n| {
            let (source, made_from) = (saying(&n.to_string()), MadeFrom::default());
            world.store.update_template((&from, &from.draft), Some((&source, None, &made_from))).await.unwrap()
        });
        assert_eq!(join_all(changes).await.into_iter().filter(|made| *made).count(), 1);
        let now = world.found("guest").await;
        assert_eq!((now.version, now.revision, world.count("template_version").await), (2, 2, 2));
        let creations = (0..8).map(async |n| {
            let new = TemplateDraft { audience: "host".into(), ..draft(&format!("new{n}")) };
            world.store.create_template(world.tenant, &new, (&saying("x"), None), &MadeFrom::default()).await.unwrap()
        });
        assert_eq!(join_all(creations).await.into_iter().filter(|made| *made).count(), 1, "one active template per place");
    }

    async fn c9_each_change_is_in_the_audit_log(world) {
        world.template(&draft("guest"), &saying("x")).await;
        let from = world.found("guest").await;
        let to = TemplateDraft { language: "de".into(), ..from.draft.clone() };
        assert!(world.store.update_template((&from, &to), Some((&saying("y"), None, &MadeFrom::default()))).await.unwrap());
        assert!(world.set_active("guest", false).await && world.set_active("guest", true).await && world.set_active("guest", false).await);
        assert!(world.store.delete_template(&world.found("guest").await).await.unwrap());
        let filter = AuditFilter { tenant: Some(world.tenant), subject: Some("guest".into()), limit: 100, ..AuditFilter::default() };
        let entries = world.store.audit_rows(&filter).await.unwrap();
        let actions: Vec<_> = entries.iter().rev().map(|entry| entry.action.as_str()).collect();
        assert_eq!(actions, ["template.create", "template.update", "template.deactivate", "template.activate", "template.deactivate", "template.delete"]);
        let update = entries[entries.len() - 2].details.clone().unwrap();
        assert_eq!(update, json!({"fields": {"language": {"from": "", "to": "de"}}, "version": 2}));
    }

    async fn a_changed_layout_makes_new_versions_of_the_templates_that_use_it(world) {
        assert!(world.layout("mail", "<b>{{ content }}</b>", 0).await);
        assert!(!world.layout("mail", "again", 0).await, "it exists");
        let using = Source { layout: Some("mail".into()), parts: BTreeMap::from([("mail".into(), "<b>{{ content }}</b>".into()), ("foot".into(), "bye".into())]), ..saying("x") };
        world.template(&draft("using"), &using).await;
        world.template(&TemplateDraft { audience: "b".into(), ..draft("plain") }, &saying("x")).await;
        world.template(&TemplateDraft { audience: "c".into(), ..draft("gone") }, &using).await;
        assert!(world.set_active("gone", false).await);
        assert!(world.store.delete_template(&world.found("gone").await).await.unwrap());
        assert_eq!(world.store.templates_using(world.tenant, "mail").await.unwrap(), [("using".to_owned(), BOOKED.to_owned())]);
        assert!(!world.layout("mail", "<i>{{ content }}</i>", 7).await, "it has another revision");
        assert!(world.layout("mail", "<i>{{ content }}</i>", 1).await);
        let now = world.current("using").await;
        assert_eq!(now.parts["mail"], "<i>{{ content }}</i>");
        assert_eq!((now.parts["foot"].as_str(), now.text.as_deref(), world.found("using").await.version), ("bye", Some("x"), 2));
        let versions = world.store.template_versions(world.tenant, "using", None, 10).await.unwrap();
        assert_eq!(versions[0].note.as_deref(), Some("layout mail changed"));
        assert_eq!((world.found("plain").await.version, world.count("template_version").await), (1, 4));
        let (_, old) = world.store.template_version(world.tenant, "using", 1).await.unwrap().unwrap();
        assert_eq!(old, using, "a delivery with the earlier version renders as before");
        assert_eq!(world.store.layout(world.tenant, "mail").await.unwrap().unwrap().revision, 2);
    }

    async fn a_save_does_not_miss_a_concurrent_change_of_what_it_copies(world) {
        assert!(world.layout("mail", "one", 0).await);
        let made_from = |revision: Option<i32>, settings: i32| MadeFrom { layouts: vec![("mail".into(), revision)], settings };
        let create = async |id: &str, from: MadeFrom| {
            let new = TemplateDraft { audience: id.into(), ..draft(id) };
            world.store.create_template(world.tenant, &new, (&saying("x"), None), &from).await.unwrap()
        };
        assert!(create("a", made_from(Some(1), 0)).await);
        assert!(!create("b", made_from(Some(2), 0)).await && !create("b", made_from(None, 0)).await && !create("b", made_from(Some(1), 1)).await);
        assert!(create("b", MadeFrom { layouts: vec![("mail".into(), Some(1)), ("other".into(), None)], settings: 0 }).await);
        let from = world.found("a").await;
        assert!(!world.store.update_template((&from, &from.draft), Some((&saying("y"), None, &made_from(Some(2), 0)))).await.unwrap());
        // The template was saved after the layout's templates were read.
        let last_change = world.store.last_template_change(world.tenant).await.unwrap();
        assert!(create("c", made_from(Some(1), 0)).await);
        let used = LayoutUse { last_change, ..LayoutUse::default() };
        let two = LayoutDraft { name: "mail".into(), kind: "layout".into(), source: "two".into() };
        assert!(!world.store.save_layout(world.tenant, &two, 1, &used).await.unwrap());
        let settings = ContentSettings { time_zone: "Asia/Kolkata".into(), ..ContentSettings::default() };
        let both = (&ContentSettings::default(), &settings);
        assert!(!world.store.update_content_settings(world.tenant, both, last_change, &[]).await.unwrap());
    }

    async fn a_layout_that_is_used_is_not_deleted(world) {
        assert!(world.layout("mail", "one", 0).await);
        let using = Source { parts: BTreeMap::from([("mail".into(), "one".into())]), ..saying("x") };
        world.template(&draft("using"), &using).await;
        let layout = world.store.layout(world.tenant, "mail").await.unwrap().unwrap();
        assert!(!world.store.delete_layout(&layout).await.unwrap());
        let from = world.found("using").await;
        assert!(world.store.update_template((&from, &from.draft), Some((&saying("y"), None, &MadeFrom::default()))).await.unwrap());
        assert!(world.store.delete_layout(&layout).await.unwrap());
        assert!(world.store.layout(world.tenant, "mail").await.unwrap().is_none());
        let pages = [world.layout("b", "x", 0).await, world.layout("a", "x", 0).await, world.layout("C", "x", 0).await];
        assert_eq!(pages, [true; 3]);
        let names = async |after: Option<&TemplatePosition>| -> Vec<String> {
            world.store.layout_rows(Some(world.tenant), after, 2).await.unwrap().into_iter().map(|row| row.name).collect()
        };
        assert_eq!(names(None).await, ["C", "a"]);
        assert_eq!(names(Some(&TemplatePosition(world.tenant, "a".into()))).await, ["b"]);
    }

    async fn templates_follow_the_content_settings_that_they_share(world) {
        let defaults = world.store.content_settings(world.tenant).await.unwrap();
        assert_eq!(defaults, ContentSettings::default());
        let own = Source { time_zone: "Asia/Kolkata".into(), ..saying("x") };
        let branded = Source { html: Some("{{ Brand.name }}".into()), brand: json!({"name": "Inn"}), time_zone: "Asia/Kolkata".into(), ..saying("x") };
        for (id, source) in [("own", &own), ("branded", &branded), ("plain", &saying("x"))] {
            world.template(&TemplateDraft { audience: id.into(), ..draft(id) }, source).await;
        }
        let change = async |to: &ContentSettings| {
            let from = world.store.content_settings(world.tenant).await.unwrap();
            let last_change = world.store.last_template_change(world.tenant).await.unwrap();
            let ids: Vec<String> = world.store.templates_following(world.tenant, &from, to).await.unwrap().into_iter().map(|(id, _)| id).collect();
            assert!(world.store.update_content_settings(world.tenant, (&from, to), last_change, &ids).await.unwrap());
            ids
        };
        let zone = ContentSettings { time_zone: "Europe/Vienna".into(), language: Some("de".into()), ..defaults };
        assert_eq!(change(&zone).await, ["plain"]);
        assert_eq!((world.current("plain").await.time_zone.as_str(), world.found("own").await.version), ("Europe/Vienna", 1));
        let brand = ContentSettings { brand: json!({"name": "Hotel"}), ..zone };
        assert_eq!(change(&brand).await, ["branded"]);
        let now = world.current("branded").await;
        assert_eq!((now.brand, now.time_zone.as_str()), (json!({"name": "Hotel"}), "Asia/Kolkata"));
        assert_eq!(world.current("plain").await.brand, json!({}), "it uses no brand values");
        let strict = ContentSettings { missing: Missing::Refuse, date_format: "%Y".into(), ..brand };
        assert_eq!(change(&strict).await, ["branded", "own", "plain"]);
        let now = world.store.content_settings(world.tenant).await.unwrap();
        assert_eq!((now.revision, now.missing, now.language.as_deref()), (3, Missing::Refuse, Some("de")));
        let own = world.current("own").await;
        assert_eq!((own.missing, own.date_format.as_str(), own.time_zone.as_str()), (Missing::Refuse, "%Y", "Asia/Kolkata"));
    }

    async fn c9_waiting_notifications_of_an_event_type_are_counted(world) {
        world.capture(json!({})).await;
        for event_type in [BOOKED, BOOKED, "other"] {
            world.enqueue(event_type, json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        }
        let waiting = async |types: &[&str]| {
            let types: Vec<String> = types.iter().map(|&name| name.to_owned()).collect();
            world.store.waiting_of_types(world.tenant, &types).await.unwrap()
        };
        assert_eq!(waiting(&[BOOKED]).await, Waiting { count: 2, is_exact: true });
        assert_eq!(waiting(&[BOOKED, "other"]).await.count, 3);
        assert_eq!(waiting(&["none"]).await, Waiting { count: 0, is_exact: true });
        // An expanded notification keeps its version.
        world.enqueue(BOOKED, json!({})).await;
        assert_eq!(waiting(&[BOOKED]).await.count, 3);
        world.pass().await;
        assert_eq!(waiting(&[BOOKED]).await.count, 2);
    }

    async fn c9_payloads_of_recent_events_are_read_newest_first(world) {
        for n in 0..3 {
            world.enqueue(BOOKED, json!({"payload": {"n": n, "guest": {"phone": "+431"}}})).await;
        }
        world.enqueue("other", json!({"payload": {"secret": 1}})).await;
        let seen = world.store.recent_payloads(world.tenant, BOOKED, 100).await.unwrap();
        let payloads: Vec<serde_json::Value> = seen.iter().map(|payload| serde_json::from_str(payload.get()).unwrap()).collect();
        assert_eq!(payloads.iter().map(|payload| &payload["n"]).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(world.store.recent_payloads(world.tenant, BOOKED, 1).await.unwrap().len(), 1);
    }
}
