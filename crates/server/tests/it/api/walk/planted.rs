//! A tenant with one of everything. Each of its texts is a canary.

use postcommit_testkit::HttpClient;
use serde_json::{Value, json};

use super::super::app::{App, items, text};

/// The objects of a tenant, and how to request them.
pub struct Planted {
    pub name: String,
    pub admin: HttpClient,
    /// Texts that must never be shown to another tenant.
    pub canaries: Vec<String>,
    notification: String,
    parked: String,
    message: String,
    job: String,
    key: String,
    /// The name of a second tenant, which the walk may suspend.
    spare: String,
}

impl Planted {
    /// Creates everything over the API, on a server that delivers only on request, so that nothing changes.
    pub fn in_tenant(app: &App, name: &str) -> Self {
        app.create_tenant(name);
        let spare = format!("{name}-spare");
        app.create_tenant(&spare);
        let admin = app.client(name, &["admin"]);
        app.create_capture(name, &format!("{name}-provider"), &format!("{name}-bad"));
        let takes_callbacks = json!({
            "name": format!("{name}-receipts"), "driver": "vonage", "is_default": false, "settings": {"from": "Hotel"},
            "secrets": {"api_key": "abc123", "api_secret": "hush_0123456789"},
        });
        let _ = admin.post("/v1/providers", &takes_callbacks).expect(201);
        let of = |event: &str, recipient: Value, due: Option<&str>| {
            app.enqueue(&admin, &notification(name, event, &recipient, due))
        };
        let mail = json!({"email": format!("{name}-address@example.com")});
        let message = of("good", json!({"user": format!("{name}-user")}), None);
        of("good", mail.clone(), None);
        let parked = of("bad", mail.clone(), None);
        app.pass();
        let notification = of("late", mail, Some("2099-01-01T00:00:00Z"));
        let job = admin
            .post("/v1/deliveries/retry", &json!({"filter": {"event_type": format!("{name}-bad")}}))
            .expect(202)
            .json();
        let key = app.create_key_as(name, &json!({"name": format!("{name}-key"), "scopes": ["read"]})).id;
        let template = json!({
            "id": format!("{name}-template"), "event_type": format!("{name}-told"), "channel": "email", "text": format!("{name}-part {{{{ brand.name }}}}"),
        });
        let _ = admin.post("/v1/templates", &template).expect(201);
        let layout = json!({"name": format!("{name}-layout"), "kind": "partial", "source": format!("{name}-partial")});
        let _ = admin.post("/v1/layouts", &layout).expect(201);
        Self::plant_audience(&admin, name);
        let only = |id: &str| text(&items(admin.get(&format!("/v1/deliveries?notification_id={id}")))[0], "id");
        let (message, parked) = (only(&message), only(&parked));
        let mut this = Self {
            name: name.to_owned(),
            canaries: vec![],
            notification,
            parked,
            message,
            job: text(&job, "id"),
            key,
            spare,
            admin,
        };
        this.canaries = this.all_canaries();
        this
    }

    /// A user, a list with two members, a suppression and a declared event type.
    fn plant_audience(admin: &HttpClient, name: &str) {
        let mail = |text: &str| format!("{name}-{text}@example.com");
        let addresses = json!([{"kind": "email", "address": mail("mail")}]);
        let data = json!({"field": format!("{name}-field")});
        let user = json!({"id": format!("{name}-profile"), "name": format!("{name}-person"), "addresses": addresses, "data": data});
        let _ = admin.post("/v1/users", &user).expect(201);
        let _ = admin
            .post("/v1/lists", &json!({"name": format!("{name}-list"), "description": format!("{name}-about")}))
            .expect(201);
        let members = json!({"add": [{"kind": "user", "member": format!("{name}-profile")}, {"kind": "email", "member": mail("member")}]});
        let sent = members.to_string();
        let _ = admin.send("PATCH", &format!("/v1/lists/{name}-list/members"), Some(sent.as_bytes())).expect(200);
        let suppression =
            json!({"channel": "email", "address": mail("suppressed"), "reason": format!("{name}-reason")});
        let _ = admin.post("/v1/suppressions", &suppression).expect(201);
        let _ = admin.post("/v1/event-types", &json!({"name": format!("{name}-declared")})).expect(201);
    }

    fn all_canaries(&self) -> Vec<String> {
        let texts = [
            "good",
            "bad",
            "late",
            "entity",
            "title",
            "text",
            "payload",
            "provider",
            "receipts",
            "user",
            "key",
            "site",
            "address",
            "spare",
            "profile",
            "person",
            "mail",
            "field",
            "list",
            "about",
            "member",
            "suppressed",
            "reason",
            "declared",
            "template",
            "told",
            "part",
            "layout",
            "partial",
        ];
        let ids = [&self.notification, &self.parked, &self.message, &self.job, &self.key];
        texts.iter().map(|text| format!("{}-{text}", self.name)).chain(ids.into_iter().cloned()).collect()
    }

    /// The value of a path parameter for an object of this tenant.
    pub fn parameter(&self, path: &str, parameter: &str) -> Option<String> {
        let noun = path.split('/').nth(2)?;
        let value = match (noun, parameter) {
            ("notifications", "id") => self.notification.clone(),
            ("deliveries", "id") => self.parked.clone(),
            ("jobs", "id") => self.job.clone(),
            ("keys", "id") => self.key.clone(),
            ("inbox", "id") => self.message.clone(),
            ("inbox", "user") => format!("{}-user", self.name),
            ("providers", "name") if path.ends_with("/callback") || path.ends_with("/delete") => {
                format!("{}-receipts", self.name)
            }
            ("providers", "name") => format!("{}-provider", self.name),
            ("tenants", "name") => self.spare.clone(),
            ("templates", "id") => format!("{}-template", self.name),
            ("templates", "version") => "1".to_owned(),
            ("layouts", "name") => format!("{}-layout", self.name),
            ("users", "id") => format!("{}-profile", self.name),
            ("lists", "name") => format!("{}-list", self.name),
            ("event-types", "name") => format!("{}-declared", self.name),
            ("entities", "entity") => format!("{}-entity", self.name),
            _ => return None,
        };
        Some(value)
    }

    /// A valid body for an operation on this tenant's objects.
    pub fn body(&self, operation: &str) -> Option<Value> {
        let name = &self.name;
        let mail = json!({"email": "somebody@example.com"});
        let body = match operation {
            "enqueue_notification" => notification("made-by-the-walk", "new", &mail, Some("2099-01-01T00:00:00Z")),
            "enqueue_notifications" => {
                json!({"notifications": [notification("made-by-the-walk", "new", &mail, Some("2099-01-01T00:00:00Z"))]})
            }
            "retry_deliveries" | "discard_deliveries" => json!({"ids": [self.parked]}),
            "create_key" => json!({"name": "made by the walk", "scopes": ["read"]}),
            "create_provider" => json!({"name": "made-by-the-walk", "driver": "capture", "is_default": false}),
            "update_provider" => json!({"concurrency": 3}),
            "test_provider" => json!({"address": "somebody@example.com"}),
            "pause_provider" | "suspend_tenant" => json!({"reason": "the walk"}),
            "create_tenant" => json!({"name": format!("made-by-the-walk-of-{name}")}),
            "create_template" => {
                json!({"id": "made-by-the-walk", "event_type": "made-by-the-walk", "channel": "sms", "text": "Hello"})
            }
            "update_template" => json!({"text": "Hello again"}),
            "create_layout" => json!({"name": "made-by-the-walk", "kind": "layout", "source": "{{ content }}"}),
            "update_layout" => json!({"source": "Hello again"}),
            "update_content" => json!({"brand": {"name": "made-by-the-walk"}}),
            "resend_entity" => json!({"channel": "email"}),
            "create_user" => json!({"id": "made-by-the-walk"}),
            "put_user" | "update_user" => json!({"name": "changed by the walk"}),
            "replace_preferences" | "set_preferences" => {
                json!({"preferences": [{"channel": "sms", "allowed": false}]})
            }
            "create_unsubscribe_link" => json!({"user": "made-by-the-walk", "channel": "email"}),
            "create_list" => json!({"name": "made-by-the-walk"}),
            "update_list" => json!({"description": "changed by the walk"}),
            "change_members" => json!({"add": [{"kind": "user", "member": "made-by-the-walk"}]}),
            "create_suppression" => {
                json!({"channel": "email", "address": "made-by-the-walk@example.com", "reason": "the walk"})
            }
            "remove_suppression" => {
                json!({"channel": "email", "address": format!("{name}-suppressed@example.com")})
            }
            "create_event_type" => json!({"name": "made-by-the-walk"}),
            "update_event_type" => json!({"mandatory": true}),
            "cancel_entity" | "dispatch" => json!({}),
            "read_all" => json!({"up_to": 1}),
            _ => return None,
        };
        Some(body)
    }

    /// A sent delivery of this tenant.
    pub fn sent(&self) -> String {
        text(&items(self.admin.get("/v1/deliveries?state=sent"))[0], "id")
    }

    /// Everything as its owner sees it, without the times at which keys were used.
    pub fn seen_by_owner(&self) -> String {
        let lists = [
            "notifications",
            "deliveries",
            "jobs",
            "keys",
            "providers",
            "audit",
            "templates",
            "layouts",
            "users",
            "lists",
            "suppressions",
            "event-types",
        ];
        let mut lists: Vec<String> = lists.map(str::to_owned).into();
        lists.extend([format!("lists/{}-list/members", self.name), format!("users/{}-profile/preferences", self.name)]);
        let mut seen = String::new();
        for list in lists {
            for mut row in items(self.admin.get(&format!("/v1/{list}"))) {
                row.as_object_mut().unwrap().remove("last_used_at");
                seen.push_str(&format!("{list}: {row}\n"));
            }
        }
        seen
    }
}

fn notification(name: &str, event: &str, recipient: &Value, due: Option<&str>) -> Value {
    json!({
        "event_type": format!("{name}-{event}"), "entity": format!("{name}-entity"), "title": format!("{name}-title"), "body": format!("{name}-text"),
        "payload": {"secret": format!("{name}-payload")}, "source": {"site": format!("{name}-site")}, "recipients": [recipient], "due_at": due,
    })
}
